"""``torch.gemm.fp8_tensor`` and ``fp8_channel``: FP8 weights and inputs through torch's scaled matrix product.

::

    codes = (x / scale_a).clamp(-448, 448).to(float8_e4m3)
    y = (codes @ weight.codes.T) * scale_a * scale_b.T + bias            # in one call
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.quant.weight import QuantizedWeight
from phyai.refresh import in_place

from phyai_backend_reference.numerics import dtype_of, give, wide

TOP = 448.0  # the largest float8_e4m3


def _prepare(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, rowwise: bool
) -> Prepared:
    weight: QuantizedWeight = weights["weight"]
    bias = weights.get("bias")
    if bias is not None:
        bias = bias.contiguous()  # _scaled_mm reads it as if it were
    n, k = weight.shape
    dtype = dtype_of(facts, "y")
    per_token = facts["quant.activation_granularity"] == "token"
    transposed = weight.codes.T
    scale_b = _weight_scale(weight, rowwise)
    static = None if facts["quant.activation_dynamic"] else weight.input_scale.float().reshape(())

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        rows = wide(x).float().reshape(-1, k).contiguous()
        if not len(rows):
            return x.new_empty((*x.shape[:-1], n), dtype=dtype) if out is None else out
        scale = _input_scale(rows, per_token) if static is None else static
        codes = (rows / scale).clamp(-TOP, TOP).to(torch.float8_e4m3fn)
        scale_a = scale.reshape(1, 1).repeat(len(rows), 1) if rowwise and not scale.dim() else scale
        y = torch._scaled_mm(codes, transposed, scale_a, scale_b, bias=bias, out_dtype=dtype)
        return give(y.reshape(*x.shape[:-1], n), dtype, out)

    keep = in_place({"weight": weight, "bias": bias})

    def refresh(new: Mapping[str, Any]) -> None:
        keep(new)
        scale_b.copy_(_weight_scale(weight, rowwise))
        if static is not None:
            static.copy_(weight.input_scale.reshape(()))

    return Prepared(run, refresh=refresh)


prepare_tensor = functools.partial(_prepare, rowwise=False)
prepare_channel = functools.partial(_prepare, rowwise=True)


def _weight_scale(weight: QuantizedWeight, rowwise: bool) -> torch.Tensor:
    """The weight's scale in fp32 as the product wants it: ``[1, N]``, or a scalar."""
    scale = weight.scale.float()
    return scale.expand(weight.shape[0], 1).T.contiguous() if rowwise else scale.reshape(())


def _input_scale(rows: torch.Tensor, per_token: bool) -> torch.Tensor:
    """The scale that maps the largest magnitude to the largest code, ``[M, 1]`` or a scalar; 1 where all is zero."""
    scale = (rows.abs().amax(dim=1, keepdim=True) if per_token else rows.abs().amax()) / TOP
    return torch.where(scale == 0, 1.0, scale)
