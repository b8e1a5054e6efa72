"""The records of attention: few queries, whose keys are split over a cluster of blocks, and many; short sequences.

Launched so that they may begin before the kernel in front has ended, as :mod:`.skinny`'s are.
"""

from __future__ import annotations

from collections.abc import Sequence

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.predicates import match

from phyai_backend_cuda.records.conditions import HOPPER, same_dtype

_ATTENTION = {
    **HOPPER, "shape.T": "<=512", "shape.head_dim": [64, 128, 192, 256], "shape.group": "<=64",
    "shape.kv_heads": "<=65535",
    "all_of": [
        {"any_of": [{"attrs.window": None}, {"attrs.window": ">=1"}]},
        {"any_of": [{"attrs.soft_cap": None}, {"attrs.soft_cap": ">0"}]},
        same_dtype(("q", "k_cache", "v_cache", "o")),
    ],
}  # fmt: skip


#: Queries, keys and values of a block fit into its shared memory, and what it computes with into its registers.
FITS = [{"shape.head_dim": "%8,<=96", "shape.Sk": "<=512"}, {"shape.head_dim": "%8,<=128", "shape.Sk": "<=320"}]
_SHORT = {
    **HOPPER, "shape.heads": "<=65535", "attrs.layout": "padded", "attrs.causal": False, "attrs.window": None,
    "attrs.soft_cap": None, "dtype.mask": None,
    "all_of": [
        {"any_of": FITS}, {"any_of": [{"attrs.scale": None}, {"attrs.scale": ">0"}]},
        same_dtype(("q", "k", "v", "o")),
    ],
}  # fmt: skip

#: Images' patches as they were measured on an H200: 7.0 us for three of 256 with heads of 72, cuDNN 10.7; 13.9 for
#: eight, cuDNN 17.1. For 24 it is 35.6, cuDNN 35.0 (benchmarks/results/vision_attention.json).
_SHORT_MEASURED = match({
    "shape.heads": 16, "shape.kv_heads": 16, "shape.B": "<=8", "attrs.square": True,
    "any_of": [
        {"shape.head_dim": 72, "shape.Sk": "64..512"}, {"shape.head_dim": 64, "shape.Sk": "196..384"},
        {"shape.head_dim": 128, "shape.Sk": 256, "shape.B": "<=2"},
    ],
})  # fmt: skip

#: The family of heads that was measured on an H200: 9.4 us for 50 queries and 1018 keys, FlashInfer's FA2 11.6
#: (benchmarks/results/attention_split.json, rows_attention.json); 21.8 for eight such requests, FA2 29.2 in the model
#: (pi05_batch8.json).
_MEASURED = match({"shape.head_dim": 256, "shape.kv_heads": 1, "shape.heads": 8, "attrs.causal": False})


def _attention(suffix: str, doc: str, *, invariant: bool, params: Sequence[Param] = ()) -> Kernel:
    return Kernel(
        id=f"cuda.attention_paged.split{suffix}", op="attention_paged", when=match(_ATTENTION),
        prepare=f"phyai_backend_cuda.attention.split:prepare{suffix}", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=invariant), rank=-int(invariant),
        bands={Band.OPTIMIZED: _MEASURED}, params=tuple(params), doc=doc,
    )  # fmt: skip


#: On an H200, calls that each have their own memory: 16.3 us for 968 queries of as many keys, cuDNN 30.3, FlashInfer's
#: FA3 43.3; 29.2 for 1218 of 1218, cuDNN 36.7; 105 for eight requests of 968, cuDNN 114
#: (benchmarks/results/attention_prefill.json). Of few queries the split is the better one.
_LONG = match({"shape.T": ">512", "shape.head_dim": 256, "shape.kv_heads": 1, "shape.heads": 8})
_PREFILL = {
    **HOPPER, "shape.head_dim": 256, "shape.group": [1, 2, 4, 8, 16, 32, 64], "shape.kv_heads": "<=65535",
    "attrs.single_page": True, "attrs.causal": False, "attrs.window": None, "attrs.soft_cap": None,
    "all_of": [
        {"any_of": [{"attrs.scale": None}, {"attrs.scale": ">0"}]}, same_dtype(("q", "k_cache", "v_cache", "o")),
    ],
}  # fmt: skip

KERNELS: tuple[Kernel, ...] = (
    _attention("", "keys split over a cluster of blocks, as many as find processors of their own", invariant=False,
               params=(Param("splits", "blocks to a cluster; follows from the calls when absent", (1, 2, 4, 8)),
                       Param("stages", "tiles of keys in flight", (1, 2)))),
    Kernel(
        id="cuda.attention_paged.prefill", op="attention_paged", when=match(_PREFILL),
        prepare="phyai_backend_cuda.attention.prefill:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=False), rank=-2,
        doc="many queries, one page of keys each: tensor cores and a ring of tiles, lengths read on the device",
        bands={Band.SPECIALIZED: _LONG},
        params=(Param("splits", "blocks that share the keys of a row; follows from the call when absent", (1, 2)),),
    ),
    _attention("_batch_invariant", "keys split over eight blocks, however many rows", invariant=True),
    Kernel(
        id="cuda.attention.short", op="attention", when=match(_SHORT),
        prepare="phyai_backend_cuda.attention.short:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=True), band=Band.REFERENCE,
        bands={Band.OPTIMIZED: _SHORT_MEASURED},
        params=(Param("groups", "warpgroups of 64 queries to a block; follows from the calls when absent", (1, 2)),),
        doc="all keys and values of a head in shared memory at once",
    ),
)  # fmt: skip
