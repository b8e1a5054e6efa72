"""Quantized inputs of π0.5's linear layers."""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactValue
from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, EXPERT, PREFIX, PREFIX_TOKENS

SCALE = ("scale",)


def _spec(
    name: str, m: int, k: int, format: str, granularity: str, group_size: int | None = None, dtype: str = "bf16",
    present: tuple[str, ...] = (), facts: Mapping[str, FactValue] | None = None,
) -> ArgSpec:  # fmt: skip
    rows = 1 if granularity == "tensor" else m
    dims = {"M": m, "K": k, "S": rows, "G": k // group_size if group_size else 1}
    attributes = {"format": format, "granularity": granularity, "group_size": group_size}
    return ArgSpec(name, dims, {"x": dtype, "codes": format}, attributes, present, facts or {})


ARG_SPECS = (
    _spec("pi05.prefix", PREFIX_TOKENS, PREFIX.width, "fp8_e4m3", "token", facts=PREFIX.facts),
    _spec("pi05.prefix.static", PREFIX_TOKENS, PREFIX.mlp, "fp8_e4m3", "tensor", present=SCALE, facts=PREFIX.facts),
    _spec("pi05.expert", CHUNK, EXPERT.width, "int8", "token", facts=EXPERT.facts),
    _spec("pi05.expert.group", CHUNK, EXPERT.mlp, "fp8_e4m3", "group", 128, facts=EXPERT.facts),
    _spec("small.int8", 5, 7, "int8", "token"),
    _spec("small.int8.tensor", 3, 8, "int8", "tensor"),
    _spec("small.int8.static", 3, 8, "int8", "tensor", present=SCALE),
    _spec("small.fp8", 5, 7, "fp8_e4m3", "token", dtype="fp32"),
    _spec("small.fp8.group", 2, 12, "fp8_e4m3", "group", 4),
    _spec("small.e5m2", 2, 12, "fp8_e5m2", "tensor", dtype="fp16"),
    _spec("small.fp64", 2, 6, "int8", "group", 3, dtype="fp64"),
)
