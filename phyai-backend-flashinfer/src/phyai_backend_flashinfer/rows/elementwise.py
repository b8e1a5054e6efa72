"""Norms, gated activations, rotations, and writing to the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Kernel
from phyai.predicates import match

from phyai_backend_flashinfer.rows.conditions import HEAD_DIMS, READ, row, same

_PARAMETERS = ["bf16", "fp16", "fp32"]
_LAYER_NORM: Mapping[str, Any] = {
    **READ, "device.arch": ">=sm80", "shape.D": ">=2", "dtype.x": "bf16", "dtype.y": "bf16",
    "dtype.weight": _PARAMETERS, "dtype.bias": [None, *_PARAMETERS],
}  # fmt: skip
#: torch's own norm asks for parameters of x's dtype.
_MIXED = match({"any_of": [{"dtype.weight": ["fp16", "fp32"]}, {"dtype.bias": ["fp16", "fp32"]}]})

#: One block writes all heads of a token, 16 bytes a thread (32 of a head of 512).
_HEADS = [
    {"shape.head_dim": 64, "shape.kv_heads": "<=128"},
    {"shape.head_dim": 128, "shape.kv_heads": "<=64"},
    {"shape.head_dim": [256, 512], "shape.kv_heads": "<=32"},
]
_KV_WRITE: Mapping[str, Any] = {
    **READ, "all_of": [{"any_of": _HEADS}, same(("k", "v", "k_cache", "v_cache"))],
}  # fmt: skip

KERNELS: tuple[Kernel, ...] = (
    row("flashinfer.rms_norm", {"attrs.offset": [0, 1], "shape.D": "%8", **same(("x", "weight", "y"))},
        "norms:prepare_rms_norm", doc="rmsnorm, or gemma_rmsnorm for the 1 + w form"),
    row("flashinfer.rms_norm_add", {"attrs.offset": [0, 1], "shape.D": "%8", **same(("x", "residual", "weight", "y"))},
        "norms:prepare_rms_norm_add", doc="fused_add_rmsnorm, or its gemma form; works on a copy of x"),
    row("flashinfer.gated_activation", {"attrs.activation": ["silu", "gelu", "gelu_tanh"], "shape.I": "%8",
                                        **same(("x", "y"))},
        "activations:prepare", doc="silu_and_mul, gelu_and_mul, gelu_tanh_and_mul"),
    row("flashinfer.rope", {"attrs.mrope_sections": None, "dtype.cos_sin": "fp32", "shape.head_dim": HEAD_DIMS,
                            "shape.rotary_dim": "%16",  # eight elements at a time, of one half
                            **same(("q", "k", "q_out", "k_out"))},
        "rope:prepare", doc="apply_rope_with_cos_sin_cache_inplace, on copies"),
    row("flashinfer.layer_norm", _LAYER_NORM, "norms:prepare_layer_norm", band=Band.REFERENCE,
        bands={Band.GENERAL: _MIXED},
        doc="layernorm, with float32 copies of the parameters; slower than torch's: last where torch has it too"),
    row("flashinfer.kv_write", _KV_WRITE, "kv_write:prepare", band=Band.REFERENCE,
        doc="append_paged_kv_cache, the whole cache as one request; not measured: last"),
)  # fmt: skip
