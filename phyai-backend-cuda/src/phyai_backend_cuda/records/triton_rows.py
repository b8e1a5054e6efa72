"""The records of the passes over rows in Triton: 16-bit norms, rotations, elementwise ops, and one product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.predicates import match

from phyai_backend_cuda.records.conditions import ACTIVATIONS, OVERLAP, TRITON

ROW_LIMIT = "<=16384"  # one program holds a whole row


def _given(names: Sequence[str], dtype: str) -> dict[str, Any]:
    """Each of ``names`` has ``dtype``, or is absent."""
    if not names:
        return {}
    return {"all_of": [{"any_of": [{f"dtype.{name}": None}, {f"dtype.{name}": dtype}]} for name in names]}


def _same(names: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """All tensors have one and the same dtype, optional ones where they are given."""
    return {
        "any_of": [
            {
                **{f"dtype.{name}": dtype for name in names},
                "device.arch": arch,
                **_given(optional, dtype),
            }
            for dtype, arch in (("bf16", ">=sm80"), ("fp16", ">=sm75"))
        ]
    }


def _patches() -> dict[str, Any]:
    """All tensors but images have one 16-bit dtype, which images of that or of single precision are rounded to."""
    same = _same(("position", "weight", "y"), ("bias",))["any_of"]
    return {"any_of": [{**option, "dtype.x": [option["dtype.y"], "fp32"]} for option in same]}


def _row(id: str, when: Mapping[str, Any], prepare: str, *, doc: str, rank: int = 0, params: Sequence[Param] = (),
         batch_invariant: bool = True, band: Band = Band.OPTIMIZED) -> Kernel:  # fmt: skip
    return Kernel(
        id=id, op=id.split(".")[1], when=match({**TRITON, **when}), prepare=f"phyai_backend_cuda.triton_rows.{prepare}",
        capture=Capture.AFTER_WARMUP, numerics=Numerics(reproducible=True, batch_invariant=batch_invariant), band=band,
        rank=rank, params=tuple(params), doc=doc,
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (
    _row("cuda.rms_norm", {"shape.D": ROW_LIMIT, **_same(("x", "y"), ("weight",))}, "norms:prepare_rms_norm",
         doc="one pass; offset added to the weight", params=(OVERLAP,)),
    _row("cuda.rms_norm_add", {"shape.D": ROW_LIMIT, **_same(("x", "residual", "weight", "y"))},
         "norms:prepare_rms_norm_add", doc="one pass over both", params=(OVERLAP,)),
    _row("cuda.ada_rms_norm", {"shape.D": ROW_LIMIT, **_same(("x", "modulation", "y", "gate"))},
         "norms:prepare_ada_rms_norm", doc="norm, scale, shift and gate in one pass"),
    _row("cuda.layer_norm", {"shape.D": ROW_LIMIT, **_same(("x", "y"), ("weight", "bias"))},
         "norms:prepare_layer_norm", doc="one pass", params=(OVERLAP,)),
    _row("cuda.layer_norm_add", {"shape.D": ROW_LIMIT, **_same(("x", "residual", "y"), ("weight", "bias"))},
         "norms:prepare_layer_norm_add", doc="one pass over both", params=(OVERLAP,)),
    _row("cuda.gated_residual", {"shape.D": ROW_LIMIT, **_same(("residual", "x", "gate", "y"))},
         "elementwise:prepare_gated_residual", doc="one pass"),
    _row("cuda.gated_activation", {"attrs.activation": ACTIVATIONS, **_same(("x", "y"))},
         "elementwise:prepare_gated_activation", band=Band.GENERAL,  # 50 rows: 1.7 us, FlashInfer 1.2; 968: 24.0, 23.8
         doc="one pass"),
    _row("cuda.embedding", _same(("weight", "y")), "elementwise:prepare_embedding",
         doc="rows, shards and the factor in one launch"),
    _row("cuda.rope", {"attrs.mrope_sections": None, "dtype.cos_sin": "fp32",
                       **_same(("q", "k", "q_out", "k_out"))}, "rope:prepare_rope", doc="q and k in one launch"),
    _row("cuda.kv_write", _same(("k", "v", "k_cache", "v_cache")), "rope:prepare_kv_write",
         doc="k and v in one launch"),
    _row("cuda.qkv_rope_kv_write", {"quant.scheme": None, "dtype.cos_sin": "fp32",
                                    **_same(("x", "weight", "k_cache", "v_cache", "q"), ("bias",))},
         "rope:prepare_qkv_rope_kv_write", batch_invariant=False, params=(OVERLAP,),
         doc="cuBLAS, then split, rotation and cache writes in one launch"),
    _row("cuda.patch_embedding", {"all_of": [{"device.arch": "sm90"}, _patches()]}, "patches:prepare",
         doc="patches gathered as rows, then one product that adds their positions; two launches that overlap"),
    _row("cuda.gemm.skinny", {"quant.scheme": None, "shape.M": "<=64", "shape.K": "%128",
                              **_same(("x", "weight", "y"), ("bias",))}, "gemm:prepare",
         band=Band.REFERENCE,  # no faster than cuBLAS at most shapes: for policies and tuning to choose
         params=(Param("block_n", "outputs per program", (16, 32, 64, 128), 32),
                 Param("block_k", "inputs per step", (64, 128), 128),
                 Param("split", "programs that share an output; chosen from N and K when absent")),
         doc="M <= 64: K split over programs, added up in a fixed order"),
)  # fmt: skip
