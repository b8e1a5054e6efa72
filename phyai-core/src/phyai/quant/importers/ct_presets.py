"""The preset schemes that a compressed-tensors ``config_groups`` entry may name instead of spelling out."""

from __future__ import annotations

from typing import Any


def _args(bits: int, kind: str, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, **more}


_MX = {"group_size": 32, "scale_dtype": "torch.uint8"}
_NV = {"group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
_TOKEN_INT8 = _args(8, "int", "token", dynamic=True)
_TOKEN_FP8 = _args(8, "float", "token", dynamic=True)
_INT4_G128 = _args(4, "int", "group", group_size=128)
_FP8_G128_INPUT = _args(8, "float", "group", group_size=128, dynamic=True)


def _preset(weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"weights": weights, "input_activations": inputs}


def _integer(weight_bits: int, activation_bits: int) -> dict[str, Any]:
    inputs = None if activation_bits == 16 else _args(activation_bits, "int", "token", dynamic=True)
    return _preset(_args(weight_bits, "int", "group", group_size=128), inputs)


#: By upper-case name, as compressed-tensors 0.20.0 defines them.
PRESETS: dict[str, dict[str, Any]] = {
    "UNQUANTIZED": {},
    "W4A16_ASYM": _preset({**_INT4_G128, "symmetric": False}),
    "W8A8": _preset(_args(8, "int", "channel"), _TOKEN_INT8),
    "INT8": _preset(_args(8, "int", "channel"), _TOKEN_INT8),
    "W4AFP8": _preset(_INT4_G128, _TOKEN_FP8),
    "FP8": _preset(_args(8, "float", "tensor"), _args(8, "float", "tensor", dynamic=False)),
    "FP8_DYNAMIC": _preset(_args(8, "float", "channel"), _TOKEN_FP8),
    "FP8_BLOCK": _preset(_args(8, "float", "block", block_structure=[128, 128]), _FP8_G128_INPUT),
    "NVFP4A16": _preset(_args(4, "float", "tensor_group", **_NV)),
    "NVFP4": _preset(
        _args(4, "float", "tensor_group", **_NV), _args(4, "float", "tensor_group", dynamic="local", **_NV)
    ),
    "MXFP4A16": _preset(_args(4, "float", "group", **_MX)),
    "MXFP4": _preset(_args(4, "float", "group", **_MX), _args(4, "float", "group", dynamic=True, **_MX)),
    "MXFP4XFP8": _preset(_args(4, "float", "group", **_MX), _FP8_G128_INPUT),
    "MXFP6A16": _preset(_args(6, "float", "group", **_MX)),
    "MXFP6A8": _preset(_args(6, "float", "group", **_MX), _args(8, "float", "group", dynamic=True, **_MX)),
    "MXFP8A16": _preset(_args(8, "float", "group", **_MX)),
    "MXFP8": _preset(_args(8, "float", "group", **_MX), _args(8, "float", "group", dynamic=True, **_MX)),
    **{f"W{w}A{a}": _integer(w, a) for w in (2, 3, 4) for a in (4, 8, 16)},
    **{f"W{w}A{a}": _integer(w, a) for w in (5, 6, 7) for a in (8, 16)},
    "W8A16": _integer(8, 16),
}
