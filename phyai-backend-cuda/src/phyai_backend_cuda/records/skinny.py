"""The records of products of few rows with large weights, and the layout of quantized ones.

They are launched so that they may begin before the kernel in front has ended, whichever that is: before
``griddepcontrol.wait`` they touch nothing but weights, for which ``prepare`` and ``refresh`` wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics, Param
from phyai.predicates import Predicate, match
from phyai.quant.formats import QuantFormat

from phyai_backend_cuda.records.conditions import ACTIVATIONS, HOPPER, same_dtype

LAYOUT = "skinny"


def cuts(dim: str, unit: int = 64) -> dict[str, Any]:
    """Inputs that fall into 1, 2, 4 or 8 equal parts of whole ``unit``s and of at most 1024."""
    return {"any_of": [{f"shape.{dim}": f"%{unit * splits},<={1024 * splits}"} for splits in (1, 2, 4, 8)]}


def fp8(q: str) -> dict[str, Any]:
    """An e4m3 weight with a scale for the tensor or for each row."""
    return {
        f"{q}.weight": "fp8_e4m3", f"{q}.granularity": ["channel", "tensor"],
        f"{q}.scale_dtype": ["fp32", "bf16", "fp16"],
    }  # fmt: skip


def int4(q: str, dim: str) -> dict[str, Any]:
    """A 4-bit weight with scales of the inputs' type for groups, or any scale for each row."""
    rows = {f"{q}.granularity": ["channel", "tensor"], f"{q}.scale_dtype": ["fp32", "bf16", "fp16"]}
    symmetric, by_groups = {f"{q}.weight": "int4", f"{q}.zero_point": None}, {f"{q}.granularity": "group"}
    centred = {f"{q}.weight": ["int4", "uint4"], f"{q}.zero_point": "int"}
    sizes = [
        {f"{q}.group_size": [32, 64], **cuts(dim)},
        {f"{q}.group_size": 128, **cuts(dim, 128)},
    ]  # fmt: skip
    groups = [
        {**zero, **by_groups, "dtype.x": dtype, f"{q}.scale_dtype": dtype, "all_of": [size]}
        for zero in (symmetric, centred) for dtype in ("bf16", "fp16") for size in sizes
    ]  # fmt: skip
    return {"any_of": [{**symmetric, **rows, "all_of": [cuts(dim)]}, *groups]}


def weight_only(q: str) -> dict[str, Any]:
    return {
        f"{q}.scheme": "*", f"{q}.activation": None, f"{q}.fields.output": None,
        **{f"{q}.{name}": [None, False] for name in ("second_scale", "g_idx", "pre_scale")},
    }  # fmt: skip


_PLAIN = {"quant.scheme": None}
ROWS = "<=64"
_GEMM = {"shape.M": ROWS, "shape.N": "%8"}
_MLP = {
    "shape.M": ROWS, "shape.I": "%64", "shape.N": "%8", "attrs.activation": ACTIVATIONS,
}  # fmt: skip
#: Of 16-bit weights, the products that take less time than cuBLAS's: 5.0 us for 7.5 and 6.9 for 7.4 on an H200. 2560 x
#: 1024 and 8192 x 1024 do not (benchmarks/results/skinny.json).
NARROW = {Band.OPTIMIZED: match({"shape.N": 1024, "shape.K": [2048, 4096]})}
#: Of quantized weights, sizes up to the expert's, where it takes less time than Humming's kernels whatever M is: of 50
#: rows 4.3 to 6.3 us in int4 and 4.8 to 7.0 in fp8; Humming's take 7.7 to 10.0 and 7.7 to 11.1, and 6.2 to 8.0 and 6.7
#: to 8.9 of a single one (benchmarks/results/skinny.json, humming_gemm.json). Larger ones were not measured.
SMALL = {Band.OPTIMIZED: match({"shape.N": "<=8192", "shape.K": "<=4096"})}
SMALL_MLP = {Band.OPTIMIZED: match({"shape.I": "<=4096", "shape.K": "<=4096", "shape.N": "<=8192"})}
_CUT = (Param("splits", "blocks of 64 rows that share K: 1, 2, 4 or 8; the cut follows from N and K when absent"),)


def _gemm(variant: str, when: Mapping[str, Any], doc: str, layouts: Sequence[str] = (LAYOUT,), *,
          band: Band = Band.GENERAL, bands: Mapping[Band, Predicate]) -> Kernel:  # fmt: skip
    return Kernel(
        id=f"cuda.gemm.skinny_{variant}", op="gemm", when=match({**HOPPER, **_GEMM, **when}),
        prepare="phyai_backend_cuda.skinny.gemm:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=True), band=band, rank=-1, bands=bands,
        layouts=tuple(layouts), params=_CUT, doc=f"M <= 64: {doc}; K split over a cluster",
    )  # fmt: skip


def packed(q: str) -> dict[str, Any]:
    """A quantized weight in the kernels' layout, for 16-bit inputs; ``q`` is what the facts of its form begin with."""
    return {**weight_only(q), f"{q}.layout": LAYOUT}


def _mlp(variant: str, when: Mapping[str, Any], doc: str, layouts: Sequence[str] = ("plain", LAYOUT), *,
         bands: Mapping[Band, Predicate] | None = None) -> Kernel:  # fmt: skip
    return Kernel(
        id=f"cuda.gated_mlp.skinny_{variant}", op="gated_mlp", when=match({**HOPPER, **_MLP, **when}),
        prepare="phyai_backend_cuda.skinny.mlp:prepare", capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True, batch_invariant=True), bands=bands or {}, layouts=tuple(layouts),
        doc=f"M <= 64: {doc}; two launches that overlap, the activation in the first",
    )  # fmt: skip


FORMATS: tuple[QuantFormat, ...] = (
    QuantFormat(
        name="cuda.skinny", layout=LAYOUT, pack="phyai_backend_cuda.skinny.layout:pack",
        unpack="phyai_backend_cuda.skinny.layout:unpack",
        when=match({"quant.weight": ["fp8_e4m3", "int4", "uint4"], "shape.K": "%64"}),
        doc="codes in the order in which a thread of csrc/skinny.cu multiplies them",
    ),
)  # fmt: skip

KERNELS: tuple[Kernel, ...] = (
    _gemm("16bit", {**_PLAIN, "all_of": [same_dtype(("x", "weight", "y"), ("bias",)), cuts("K")]}, "16-bit weight",
          ("plain",), band=Band.REFERENCE, bands=NARROW),  # for policies and tuning to choose elsewhere
    _gemm("fp8", {**weight_only("quant"), **fp8("quant"),
                  "all_of": [same_dtype(("x", "y"), ("bias",)), cuts("K")]}, "e4m3 weight", bands=SMALL),
    _gemm("int4", {**weight_only("quant"), "all_of": [same_dtype(("x", "y"), ("bias",)), int4("quant", "K")]},
          "4-bit weight", bands=SMALL),
    _mlp("16bit", {"parts.gate_up.quant.scheme": None, "parts.down.quant.scheme": None,
                   "all_of": [same_dtype(("x", "gate_up", "down", "y")), cuts("K"), cuts("I")]},
         "16-bit weights", ("plain",)),
    _mlp("fp8", {**packed("parts.gate_up.quant"), **packed("parts.down.quant"),
                 **fp8("parts.gate_up.quant"), **fp8("parts.down.quant"),
                 "all_of": [same_dtype(("x", "y")), cuts("K"), cuts("I")]}, "e4m3 weights", bands=SMALL_MLP),
    _mlp("int4", {**packed("parts.gate_up.quant"), **packed("parts.down.quant"),
                  "all_of": [same_dtype(("x", "y")), int4("parts.gate_up.quant", "K"),
                             int4("parts.down.quant", "I")]},
         "4-bit weights", bands=SMALL_MLP),
)  # fmt: skip
