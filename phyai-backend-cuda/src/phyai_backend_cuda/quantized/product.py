"""FP8 products of quantized inputs: what ``gemm`` and ``gated_mlp`` share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from phyai.facts import FactValue
from phyai.kernel import Resources
from phyai.quant.weight import QuantizedWeight
from phyai.refresh import renewed

from phyai_backend_cuda.quantized.kernels import quantize
from phyai_backend_cuda.runtime.memory import aligned


class Fp8Product:
    """``x @ weight.T + bias`` of ``x [M, K]``, whose rows become FP8 codes on the way in.

    ``quant`` are the ``quant.*`` facts of the call, without that prefix. Products are scaled by rows and columns; where
    each side has one scale, by two numbers.
    """

    def __init__(
        self, weight: QuantizedWeight, bias: torch.Tensor | None, quant: Mapping[str, FactValue], resources: Resources,
        *, fast: bool, options: Mapping[str, bool],
    ) -> None:  # fmt: skip
        self.weight, self.fast, self.resources, self.options = weight, fast, resources, options
        self.by_token = quant["activation_granularity"] == "token"
        self.by_rows = self.by_token or quant["granularity"] == "channel"
        self.codes, self.bias = aligned(weight.codes), None if bias is None else aligned(bias)
        self.scale = self._weight_scale(weight)
        self.given = None if quant["activation_dynamic"] else weight.input_scale.float().reshape(1)

    def _weight_scale(self, weight: QuantizedWeight) -> torch.Tensor:
        """fp32 ``[1, N]``, or a scalar."""
        scale = weight.scale.float()
        return aligned(scale.expand(weight.shape[0], 1).T if self.by_rows else scale.reshape(()))

    def empty(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Places for the codes of an input and their scales."""
        codes = torch.empty(rows, self.weight.shape[1], dtype=torch.float8_e4m3fn, device=self.scale.device)
        return codes, torch.empty(rows if self.by_rows else 1, dtype=torch.float32, device=self.scale.device)

    def quantized(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales of ``x [M, K]``."""
        codes, scales = self.empty(len(x))
        partial = not self.by_token and self.given is None
        quantize(
            x, codes, scales, given=self.given, partial=partial, resources=self.resources, options=self.options,
        )  # fmt: skip
        return codes, scales

    def __call__(
        self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The product ``[M, N]`` of quantized inputs; ``out`` is aligned."""
        scale = scales.view(-1, 1) if self.by_rows else scales.reshape(())
        given = {} if out is None else {"out": out}
        return torch._scaled_mm(
            codes, self.codes.T, scale, self.scale, bias=self.bias, out_dtype=dtype, use_fast_accum=self.fast,
            **given,
        )  # fmt: skip

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


def placed(
    product: Fp8Product, quantized: tuple[torch.Tensor, torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype,
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The product in ``shape``: in ``out``, straight into it where it lies as cuBLAS wants it."""
    if out is None:
        return product(*quantized, dtype).view(shape)
    if out.is_contiguous() and not out.data_ptr() % 16:
        product(*quantized, dtype, out.view(-1, shape[-1]))
        return out
    return out.copy_(product(*quantized, dtype).view(shape))
