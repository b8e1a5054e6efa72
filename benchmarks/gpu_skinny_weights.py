"""The calls of π0's expert, its weights in every format and how they are cut, as ``gpu_skinny.py`` measures them."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from phyai_backend_cuda.skinny import order
from phyai_backend_cuda.skinny.launch import Shape, shape_for

EXPERT = {"qkv": (2560, 1024), "o": (1024, 2048), "gate_up": (8192, 1024), "down": (1024, 4096)}
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {"bits": 16}, "fp8 channel": {"bits": 8}, "int4 g128": {"bits": 4, "group": 128},
    "int4 channel": {"bits": 4}, "int4 g32": {"bits": 4, "group": 32},
}  # fmt: skip
TIMED = ("bf16", "fp8 channel", "int4 g128")


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def weight(
    n: int, k: int, bits: int, group: int = 0, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16,
    dense: bool = True,
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:  # fmt: skip
    """A random weight as the kernel takes it, and in float64."""
    scales = torch.rand(n, k // group if group else 1, device="cuda") + 0.5
    if bits == 16:
        w = normal(n, k, dtype=dtype) / k**0.5
        return {"w": w}, w.double() if dense else None
    if bits == 8:
        codes = normal(n, k).to(torch.float8_e4m3fn)
        held = {"w": order.pack_fp8(codes.view(torch.uint8)), "row_scale": scales[:, 0] / k**0.5}
        return held, codes.double() * held["row_scale"].double()[:, None] if dense else None
    codes = torch.randint(0, 16, (n, k), dtype=torch.uint8, device="cuda")
    held = {"w": order.pack_int4(codes)}
    if not group:
        held["row_scale"] = scales[:, 0] / (4 * k**0.5)
        return held, (codes.double() - 8) * held["row_scale"].double()[:, None] if dense else None
    scale = (scales / (4 * k**0.5)).to(dtype)
    zero = torch.randint(0, 17, scale.shape, device="cuda") if zero_point else torch.full(scale.shape, 8, device="cuda")
    held["group_scale"] = order.pack_pairs(scale)
    if zero_point:
        held["group_zero"] = order.pack_pairs((zero + (1024 if dtype == torch.float16 else 128)).to(dtype))
    if not dense:
        return held, None
    z, s = (t.double().repeat_interleave(group, 1) for t in (zero, scale))
    return held, (codes.double() - z) * s


def shape_of(
    n: int, k: int, bits: int, group: int = 0, zero_point: bool = False, dtype: torch.dtype = torch.bfloat16,
    splits: int | None = None, **epilogue: Any,
) -> Shape:  # fmt: skip
    """The cut of such a weight that call sites choose, or the one with so many splits of K."""
    half = dtype == torch.float16
    shape = shape_for(n, k, bits=bits, group=group, centred=zero_point, half=half, **epilogue)
    assert shape is not None, "no shape"
    return shape if splits is None else attrs.evolve(shape, splits=splits)
