"""Quantized weights with known numbers: the plain form of any scheme, also of those that need calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from phyai.quant.scheme import QuantScheme, TensorQuant

if TYPE_CHECKING:
    import torch

_STATIC_SCALE = 3.0


def quantized_weight(weight: torch.Tensor, scheme: QuantScheme, *, seed: int = 0) -> Any:
    """``weight`` ``[N, K]`` quantized by ``scheme``; static scales, group index and pre-scale follow from ``seed``."""
    import torch

    from phyai.quant.realize.rtn import quantize_weight

    generator = torch.Generator().manual_seed(seed)
    by_data = QuantScheme(attrs.evolve(scheme.weight, g_idx=False))
    plain = quantize_weight(weight, by_data)
    parts: dict[str, Any] = {"scheme": scheme}
    if scheme.pre_scale:
        parts["pre_scale"] = 1 + 0.25 * torch.rand(weight.shape[1], generator=generator)
    if scheme.weight.g_idx and scheme.weight.group_size is not None:
        groups = torch.arange(weight.shape[1]) // scheme.weight.group_size
        order = torch.randperm(weight.shape[1], generator=generator)
        parts |= {"g_idx": groups[order].to(torch.int32), "codes": _reordered(plain, order)}
    for name, quant in (("input", scheme.input), ("output", scheme.output)):
        if quant is not None:
            parts |= _static_parts(name, quant)
    return attrs.evolve(plain, **parts)


def _static_parts(name: str, quant: TensorQuant) -> dict[str, Any]:
    """The stored numbers of a quantized activation whose scale is not computed, or not all of it."""
    import torch

    scale = _STATIC_SCALE / quant.element.maximum
    if quant.dynamic:
        return {f"{name}_scale": torch.tensor(2.0**-8, dtype=torch.float64)} if quant.second_scale else {}
    parts = {f"{name}_scale": torch.tensor(scale, dtype=torch.float32)}
    if quant.zero_point is not None:
        middle = round((quant.element.minimum + quant.element.maximum) / 2)
        parts[f"{name}_zero_point"] = torch.tensor(float(middle))
    return parts


def _reordered(plain: Any, order: torch.Tensor) -> torch.Tensor:
    """The codes with their columns in another order."""
    from phyai.quant.realize.bits import pack_bits
    from phyai.quant.realize.codes import code_patterns

    quant = plain.scheme.weight
    if quant.bits == 8:
        codes: torch.Tensor = plain.codes[:, order]
        return codes.contiguous()
    patterns = code_patterns(plain.codes, quant.dtype, plain.shape[1])
    return pack_bits(patterns[:, order], quant.bits)
