"""``cuda.quantize_activation``: codes and scales in one launch (two where one scale follows from the whole tensor)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.quantized.kernels import quantize

FORMATS: Mapping[str, torch.dtype] = {
    "int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    dtype = FORMATS[str(facts.get("attrs.format", "fp8_e4m3"))]
    granularity, group_size = facts.get("attrs.granularity", "token"), whole(facts, "attrs.group_size", 0)

    def run(
        x: torch.Tensor, scale: torch.Tensor | None = None, out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        width = group_size if granularity == "group" else x.shape[-1]
        shape = (1,) if granularity == "tensor" else (*x.shape[:-1], x.shape[-1] // width)
        codes = torch.empty(x.shape, dtype=dtype, device=x.device) if out is None else out[0]
        scales = torch.empty(shape, dtype=torch.float32, device=x.device) if out is None else out[1]
        flat = scales.reshape(-1).contiguous()
        if x.numel():
            written = codes.reshape(-1, width)
            quantize(
                x.reshape(-1, width), written, flat, given=None if scale is None else scale.reshape(1),
                partial=granularity == "tensor" and scale is None, resources=resources,
            )  # fmt: skip
            if written.data_ptr() != codes.data_ptr():
                codes.copy_(written.view(codes.shape))
        elif scale is None:
            flat.fill_(1)
        else:
            flat.copy_(scale)
        if flat.data_ptr() != scales.data_ptr():
            scales.copy_(flat.view(shape))
        return codes, scales

    return Prepared(run)
