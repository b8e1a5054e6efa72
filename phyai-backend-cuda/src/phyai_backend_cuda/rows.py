"""The records of ``cuda.*``: what PhyAI's own kernels can execute. Imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.predicates import match

#: Triton's first release that these kernels were written for.
TRITON: Mapping[str, Any] = {"device.type": "cuda", "device.vendor": "nvidia", "lib.triton": ">=3.4"}
#: Of kernels that run between others: see ``triton_rows.common.overlapping``.
OVERLAP = Param("overlap", "set up while the kernel in front still runs; sm90 or later", (False, True), False)
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


def _row(id: str, when: Mapping[str, Any], prepare: str, *, doc: str, rank: int = 0, params: Sequence[Param] = (),
         batch_invariant: bool = True, band: Band = Band.OPTIMIZED) -> Kernel:  # fmt: skip
    return Kernel(
        id=id, op=id.split(".")[1], when=match({**TRITON, **when}), prepare=f"phyai_backend_cuda.triton_rows.{prepare}",
        capture=Capture.AFTER_WARMUP, numerics=Numerics(reproducible=True, batch_invariant=batch_invariant), band=band,
        rank=rank, params=tuple(params), doc=doc,
    )  # fmt: skip


#: What ``csrc/expert.cu`` was written for: π0.5's expert, one request, on Hopper.
_EXPERT: Mapping[str, Any] = {
    "device.type": "cuda", "device.vendor": "nvidia", "device.arch": "sm90", "device.sm_count": ">=128",
    "lib.cupy": ">=13", "attrs.activation": "gelu_tanh", "attrs.heads": 8, "shape.kv_heads": 1, "shape.head_dim": 256,
    "shape.D": 1024, "shape.I": 4096, "shape.A": 32, "shape.B": 1, "shape.M": "1..56",
    **dict.fromkeys(("dtype.x", "dtype.y", "dtype.cos_sin", "dtype.out_bias"), "fp32"),
    **dict.fromkeys((f"dtype.{n}" for n in ("k_cache", "v_cache", "qkv", "o", "gate_up", "down")), "bf16"),
}  # fmt: skip

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        id="cuda.expert_steps.persistent", op="expert_steps", when=match(_EXPERT),
        prepare="phyai_backend_cuda.expert_steps:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True), band=Band.SPECIALIZED, specializes_on=("shape.M",),
        doc="all steps and layers in one launch; keeps packed weights of its own",
    ),
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
    _row("cuda.gated_activation", {"attrs.activation": ["silu", "gelu", "gelu_tanh"], **_same(("x", "y"))},
         "elementwise:prepare_gated_activation", doc="one pass"),
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
    _row("cuda.gemm.skinny", {"quant.scheme": None, "shape.M": "<=64", "shape.K": "%128",
                              **_same(("x", "weight", "y"), ("bias",))}, "gemm:prepare", band=Band.GENERAL,
         params=(Param("block_n", "outputs per program", (16, 32, 64, 128), 32),
                 Param("block_k", "inputs per step", (64, 128), 128),
                 Param("split", "programs that share an output; chosen from N and K when absent")),
         doc="M <= 64: K split over programs, added up in a fixed order"),
)  # fmt: skip
