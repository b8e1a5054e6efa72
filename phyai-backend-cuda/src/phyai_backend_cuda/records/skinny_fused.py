"""The records of products of few rows that do more than multiply before they round: rotate and write heads, or add to a
residual (``csrc/skinny_epilogues.cuh``). As :mod:`.skinny`'s, they are launched to overlap what is in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.predicates import Predicate, match

from phyai_backend_cuda.records.conditions import ACTIVATIONS, HOPPER, same_dtype
from phyai_backend_cuda.records.skinny import LAYOUT, NARROW, ROWS, SMALL, SMALL_MLP, cuts, fp8, int4, packed

#: Heads of 32 elements, and of whole 32 where halves of them rotate: those of a pair are multiplied by one block.
_HEADS = {
    "shape.T": ROWS, "attrs.head_dim": "%32", "shape.head_dim": "%32", "dtype.cos_sin": "fp32",
    "any_of": [{"attrs.style": "interleaved"}, {"attrs.style": "neox", "shape.rotary_dim": "%32"}],
}  # fmt: skip
_ADDED = {"shape.M": ROWS, "shape.N": "%8"}
_BLOCK = {**_ADDED, "shape.I": "%64", "attrs.activation": ACTIVATIONS}
_QKV, _GEMM = "parts.qkv.quant", "parts.gemm.quant"
#: What was measured on an H200: 5.8 us, where cuBLAS and a pass behind it take 6.8; 3.9 where it overlaps the launch in
#: front (benchmarks/results/skinny_fused.json).
_MEASURED_HEADS = {Band.OPTIMIZED: match({"shape.N": 2560, "shape.K": 1024})}
_GATE_UP, _DOWN = (f"parts.gated_mlp.parts.{name}.quant" for name in ("gate_up", "down"))


def _fused(op: str, variant: str, prepare: str, when: Mapping[str, Any], doc: str, *, band: Band = Band.GENERAL,
           bands: Mapping[Band, Predicate] | None = None, rank: int = -1) -> Kernel:  # fmt: skip
    return Kernel(
        id=f"cuda.{op}.skinny_{variant}", op=op, when=match({**HOPPER, **when}),
        prepare=f"phyai_backend_cuda.skinny.{prepare}", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=True), rank=rank, band=band, bands=bands or {},
        layouts=("plain",) if variant == "16bit" else ("plain", LAYOUT), doc=doc,
    )  # fmt: skip


def _heads(variant: str, when: Mapping[str, Any], *conditions: Any, weight: str, **bands: Any) -> Kernel:
    tensors = ("x", "k_cache", "v_cache", "q", *(("weight",) if variant == "16bit" else ()))
    every = [{"any_of": _HEADS["any_of"]}, same_dtype(tensors, ("bias",)), *conditions]
    rest = {name: value for name, value in _HEADS.items() if name != "any_of"}
    return _fused(
        "qkv_rope_kv_write", variant, "heads:prepare", {**rest, **when, "all_of": every},
        f"T <= 64: {weight}; rotated and written to the cache in the product's launch, rounded once", rank=1, **bands,
    )  # fmt: skip


def _added(variant: str, when: Mapping[str, Any], *conditions: Any, weight: str, **bands: Any) -> Kernel:
    tensors = ("x", "residual", "gate", "y", *(("weight",) if variant == "16bit" else ()))
    return _fused(
        "gemm_gated_residual", variant, "residual:prepare_gemm",
        {**_ADDED, **when, "all_of": [same_dtype(tensors, ("bias",)), *conditions]},
        f"M <= 64: {weight}; gated and added in the product's launch, rounded once", **bands,
    )  # fmt: skip


def _block(variant: str, when: Mapping[str, Any], *conditions: Any, weight: str, **bands: Any) -> Kernel:
    tensors = ("x", "residual", "gate", "y", *(("gate_up", "down") if variant == "16bit" else ()))
    return _fused(
        "gated_mlp_gated_residual", variant, "residual:prepare_mlp",
        {**_BLOCK, **when, "all_of": [same_dtype(tensors), *conditions]},
        f"M <= 64: {weight}; two launches that overlap, the activation in the first, gate and addition in the second",
        **bands,
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (
    _heads("16bit", {f"{_QKV}.scheme": None}, cuts("K"), weight="16-bit weight", bands=_MEASURED_HEADS),
    _heads("fp8", {**packed(_QKV), **fp8(_QKV)}, cuts("K"), weight="e4m3 weight", bands=SMALL),
    _heads("int4", packed(_QKV), int4(_QKV, "K"), weight="4-bit weight", bands=SMALL),
    _added("16bit", {f"{_GEMM}.scheme": None}, cuts("K"), weight="16-bit weight", band=Band.REFERENCE, bands=NARROW),
    _added("fp8", {**packed(_GEMM), **fp8(_GEMM)}, cuts("K"), weight="e4m3 weight", bands=SMALL),
    _added("int4", packed(_GEMM), int4(_GEMM, "K"), weight="4-bit weight", bands=SMALL),
    _block("16bit", {f"{_GATE_UP}.scheme": None, f"{_DOWN}.scheme": None}, cuts("K"), cuts("I"),
           weight="16-bit weights"),
    _block("fp8", {**packed(_GATE_UP), **packed(_DOWN), **fp8(_GATE_UP), **fp8(_DOWN)}, cuts("K"), cuts("I"),
           weight="e4m3 weights", bands=SMALL_MLP),
    _block("int4", {**packed(_GATE_UP), **packed(_DOWN)}, int4(_GATE_UP, "K"), int4(_DOWN, "I"),
           weight="4-bit weights", bands=SMALL_MLP),
)  # fmt: skip
