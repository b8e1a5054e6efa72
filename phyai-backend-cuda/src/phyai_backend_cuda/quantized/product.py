"""Products of quantized inputs: what ``gemm``, feed-forward blocks and projections share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from phyai.facts import FactValue
from phyai.kernel import Resources
from phyai.quant.weight import QuantizedWeight
from phyai.refresh import renewed

from phyai_backend_cuda.quantized.activated import activate_quantize
from phyai_backend_cuda.quantized.codes import TOP
from phyai_backend_cuda.quantized.int8 import int8_product
from phyai_backend_cuda.quantized.kernels import PARTS, parts_of, quantize
from phyai_backend_cuda.quantized.normed import norm_quantize
from phyai_backend_cuda.runtime.memory import aligned

#: Codes of an input and their scales.
Quantized = tuple[torch.Tensor, torch.Tensor]


class Product:
    """``x @ weight.T + bias`` of ``x [M, K]``, whose rows become codes on the way in.

    ``quant`` are the ``quant.*`` facts of the call, without that prefix. Inputs are quantized by themselves
    (:meth:`quantized`), or by the pass that computes them (:meth:`activated`, :meth:`normed`).
    """

    dtype: ClassVar[torch.dtype]
    low: ClassVar[float]  # the lowest code

    def __init__(
        self, weight: QuantizedWeight, bias: torch.Tensor | None, quant: Mapping[str, FactValue], resources: Resources,
        *, fast: bool, options: Mapping[str, bool],
    ) -> None:  # fmt: skip
        self.weight, self.fast, self.resources, self.options = weight, fast, resources, options
        self.top = TOP[self.dtype]
        if quant["fields.activation_scale_rule"] == "full_range":  # from the lowest code to the largest
            self.top = (self.top - self.low) / 2
        self.by_token = quant["activation_granularity"] == "token"
        self.by_rows = self.by_token or quant["granularity"] == "channel"
        self.codes, self.bias = aligned(weight.codes), None if bias is None else aligned(bias)
        self.scale = self._weight_scale(weight)
        self.given = None if quant["activation_dynamic"] else weight.input_scale.float().reshape(1)

    def _weight_scale(self, weight: QuantizedWeight) -> torch.Tensor:
        """fp32 ``[1, N]``, or a scalar."""
        scale = weight.scale.float()
        return aligned(scale.expand(weight.shape[0], 1).T if self.by_rows else scale.reshape(()))

    @property
    def partial(self) -> bool:
        """Whether one scale follows from all of an input."""
        return not self.by_token and self.given is None

    def empty(self, rows: int) -> Quantized:
        """Places for the codes of an input and their scales."""
        codes = torch.empty(rows, self.weight.shape[1], dtype=self.dtype, device=self.scale.device)
        return codes, torch.empty(rows if self.by_rows else 1, dtype=torch.float32, device=self.scale.device)

    def quantized(self, x: torch.Tensor, maxima: torch.Tensor | None = None) -> Quantized:
        """Codes and scales of ``x [M, K]``, of which somebody may know partial ``maxima``."""
        codes, scales = self.empty(len(x))
        quantize(
            x, codes, scales, given=self.given, maxima=maxima, partial=self.partial, resources=self.resources,
            top=self.top, low=self.low, options=self.options,
        )  # fmt: skip
        return codes, scales

    def activated(self, x: torch.Tensor, activation: str, *, gated: bool) -> Quantized:
        """Codes and scales of the activation of ``x [M, K]``, or ``[M, 2·K]`` where ``gated`` (bf16, contiguous)."""
        codes, scales = self._filled_by_a_pass(len(x))
        activate_quantize(
            x, codes, scales, activation, gated=gated, given=self.given, top=self.top, options=self.options
        )
        return self._settled(codes, scales)

    def normed(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float, offset: float
    ) -> Quantized:
        """``residual += x``, and codes and scales of its RMS norm; see :func:`norm_quantize` for what it takes."""
        codes, scales = self._filled_by_a_pass(len(x))
        norm_quantize(
            x, residual, weight, codes, scales, eps=eps, offset=offset, given=self.given, top=self.top,
            options=self.options,
        )  # fmt: skip
        return self._settled(codes, scales)

    def _filled_by_a_pass(self, rows: int) -> Quantized:
        """Places for codes and scales; where one scale follows from all that the pass computes, for that and for the
        largest magnitude of every row."""
        if not self.partial:
            return self.empty(rows)
        values = torch.empty(rows, self.weight.shape[1], dtype=torch.bfloat16, device=self.scale.device)
        if rows > PARTS:
            return values, torch.empty(rows, dtype=torch.float32, device=self.scale.device)
        return values, parts_of(self.resources, rows)

    def _settled(self, codes: torch.Tensor, scales: torch.Tensor) -> Quantized:
        if not self.partial:
            return codes, scales
        return self.quantized(codes, maxima=scales if len(scales) <= PARTS else None)

    def __call__(
        self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The product ``[M, N]`` of quantized inputs; ``out`` is aligned."""
        raise NotImplementedError

    def refresh(self, weight: QuantizedWeight, bias: torch.Tensor | None) -> None:
        """Take new values in place."""
        renewed(self.weight, weight)
        self.codes.copy_(weight.codes)
        if self.bias is not None:
            assert bias is not None
            self.bias.copy_(bias)
        self.scale.copy_(self._weight_scale(weight))
        if self.given is not None:
            self.given.copy_(weight.input_scale.reshape(1))


class Fp8Product(Product):
    """In FP8 (e4m3), by ``torch._scaled_mm``: scaled by rows and columns, or by two numbers where each side has one."""

    dtype, low = torch.float8_e4m3fn, -448.0

    def __call__(
        self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        scale = scales.view(-1, 1) if self.by_rows else scales.reshape(())
        return self._product(codes, scale, self.scale, self.bias, dtype, out)

    def unscaled(self, codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The product of the codes alone, without bias, for who reads it to scale: cuBLAS is quicker with it."""
        one = self.resources.shared(
            ("cuda.fp8.one", self.scale.device), lambda: torch.ones((), dtype=torch.float32, device=self.scale.device)
        )
        return self._product(codes, one, one, None, dtype, None)

    def _product(
        self, codes: torch.Tensor, scale: torch.Tensor, other: torch.Tensor, bias: torch.Tensor | None,
        dtype: torch.dtype, out: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        given = {} if out is None else {"out": out}
        return torch._scaled_mm(
            codes, self.codes.T, scale, other, bias=bias, out_dtype=dtype, use_fast_accum=self.fast, **given
        )


class Int8Product(Product):
    """In int8, whose sums are exact, scaled in the product's end."""

    dtype, low = torch.int8, -128.0

    def __call__(
        self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        y = torch.empty(len(codes), len(self.codes), dtype=dtype, device=codes.device) if out is None else out
        int8_product(codes, scales, self.codes, self.scale, self.bias, y, options=self.options)
        return y


def product_of(
    weight: QuantizedWeight, bias: torch.Tensor | None, quant: Mapping[str, FactValue], resources: Resources, *,
    fast: bool, options: Mapping[str, bool],
) -> Product:  # fmt: skip
    """The product with a weight in FP8 or int8."""
    kind = Int8Product if quant["weight"] == "int8" else Fp8Product
    return kind(weight, bias, quant, resources, fast=fast, options=options)


def placed(
    product: Product, quantized: Quantized, shape: tuple[int, ...], dtype: torch.dtype, out: torch.Tensor | None
) -> torch.Tensor:
    """The product in ``shape``: in ``out``, straight into it where it lies as cuBLAS wants it."""
    if out is None:
        return product(*quantized, dtype).view(shape)
    if out.is_contiguous() and not out.data_ptr() % 16:
        product(*quantized, dtype, out.view(-1, shape[-1]))
        return out
    return out.copy_(product(*quantized, dtype).view(shape))
