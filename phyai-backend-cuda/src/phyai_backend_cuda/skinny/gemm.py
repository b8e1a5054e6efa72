"""``cuda.gemm.skinny_*``: ``csrc/skinny.cu`` and ``csrc/skinny_pair.cu`` at a call site of ``gemm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from phyai.errors import CallError
from phyai.facts import Facts, whole
from phyai.kernel import Prepared, Resources
from phyai.quant.weight import QuantizedWeight

from phyai_backend_cuda.runtime.early import prepared_gemm
from phyai_backend_cuda.runtime.memory import aligned, output, placed, readable, settle
from phyai_backend_cuda.skinny.launch import CHUNK, MAX_ROWS, Shape, launch, shape_for


class Product:
    """One weight with its cut: launches for at most 64 rows of ``dtype``.

    ``epilogue``: the activation, residual or heads of its :class:`~phyai_backend_cuda.skinny.launch.Shape`.
    """

    def __init__(
        self, weight: Any, bias: torch.Tensor | None, facts: Facts, params: Mapping[str, Any] | None = None,
        **epilogue: Any,
    ) -> None:  # fmt: skip
        self.dtype = torch.float16 if facts["dtype.x"] == "fp16" else torch.bfloat16
        self.shape = cut_of(weight, facts, params or {}, **epilogue)
        self.operands = self._operands(weight)
        self.bias = None if bias is None else aligned(bias)

    def _operands(self, weight: Any) -> dict[str, torch.Tensor]:
        if isinstance(weight, QuantizedWeight):
            from phyai_backend_cuda.skinny.layout import operands

            return {name: aligned(tensor) for name, tensor in operands(weight, self.dtype).items()}
        return {"w": aligned(weight)}

    def load(self, rows: tuple[int, int] | None) -> None:
        """Compile for the least and the greatest number of rows of the site's calls; for few where nothing is said."""
        for count in {min(max(1, bound), MAX_ROWS) for bound in rows or (1,)}:
            self.shape.kernel(count)

    def __call__(
        self, x: torch.Tensor, out: torch.Tensor | None = None, more: Mapping[str, int] | None = None
    ) -> torch.Tensor:
        """``[..., outputs]`` of ``x [..., K]``; ``more`` are the arguments of the epilogue."""
        y = output(x, out, *x.shape[:-1], self.shape.outputs)
        if y.numel():
            place = placed(y, self.shape.stored)
            self.launch(x, place, more)
            settle(y, place)
        return y

    def launch(self, x: torch.Tensor, y: torch.Tensor, more: Mapping[str, int] | None) -> None:
        """Into a ``y`` that the kernel can write."""
        rows = readable(x.reshape(-1, self.shape.k))
        launch(self.shape, rows, y, operands=self.operands, bias=self.bias, more=more)

    def refresh(self, weight: Any, bias: torch.Tensor | None) -> None:
        """Take new values in place."""
        for name, new in self._operands(weight).items():
            self.operands[name].copy_(new)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)


def cut_of(weight: Any, facts: Facts, params: Mapping[str, Any], **epilogue: Any) -> Shape:
    """The cut for a weight ``[N, K]``, with what ``params`` say of it.

    Raises:
        CallError: this cut cannot be run.
    """
    n, k = weight.shape
    quant = weight.scheme.weight if isinstance(weight, QuantizedWeight) else None
    shape = shape_for(
        n, k, bits=quant.bits if quant else 16, group=(quant.group_size or 0) if quant else 0,
        centred=quant is not None and quant.zero_point is not None, half=facts["dtype.x"] == "fp16",
        processors=whole(facts, "device.sm_count", 132), **epilogue,
    )  # fmt: skip
    if shape is None:
        raise CallError(f"no cut of a weight [{n}, {k}] can be run")
    if (splits := params.get("splits")) is not None:
        shape = attrs.evolve(shape, splits=int(splits), block_rows=CHUNK)
        if (why := shape.objection()) is not None:
            raise CallError(f"splits={splits}: {why}")
    return shape


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    return prepared_gemm(Product(weights["weight"], weights.get("bias"), facts, params), resources.rows)
