"""Linear layers of π0, π0.5 and Cosmos3."""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactValue
from phyai.op import ArgSpec
from phyai.ops.shapes import CHUNK, COSMOS3, EXPERT, HEAD, IMAGE_TOKENS, PI0_HEAD, PREFIX, PREFIX_TOKENS, VISION

BIAS = ("bias",)


def _spec(
    name: str,
    facts: Mapping[str, FactValue],
    m: int,
    n: int,
    k: int,
    present: tuple[str, ...] = (),
    dtype: str = "bf16",
) -> ArgSpec:
    dtypes = dict.fromkeys(("x", "weight", "bias", "y"), dtype)
    return ArgSpec(name, {"M": m, "N": n, "K": k}, dtypes=dtypes, present=present, facts=facts)


ARG_SPECS = (
    _spec("pi05.vision.qkv", VISION.facts, 3 * IMAGE_TOKENS, VISION.qkv, VISION.width, BIAS),
    _spec("pi05.vision.o", VISION.facts, 3 * IMAGE_TOKENS, VISION.width, VISION.attention, BIAS),
    _spec("pi05.vision.up", VISION.facts, 3 * IMAGE_TOKENS, VISION.mlp, VISION.width, BIAS),
    _spec("pi05.vision.down", VISION.facts, 3 * IMAGE_TOKENS, VISION.width, VISION.mlp, BIAS),
    _spec("pi05.vision.projector", VISION.facts, 3 * IMAGE_TOKENS, PREFIX.width, VISION.width, BIAS),
    _spec(
        "pi0.vision.up",
        {**VISION.facts, "model.family": "pi0"},
        2 * IMAGE_TOKENS,
        VISION.mlp,
        VISION.width,
        BIAS,
        "fp32",
    ),
    _spec("pi05.prefix.qkv", PREFIX.facts, PREFIX_TOKENS, PREFIX.qkv, PREFIX.width),
    _spec("pi05.prefix.o", PREFIX.facts, PREFIX_TOKENS, PREFIX.width, PREFIX.attention),
    _spec("pi05.prefix.gate_up", PREFIX.facts, PREFIX_TOKENS, 2 * PREFIX.mlp, PREFIX.width),
    _spec("pi05.prefix.down", PREFIX.facts, PREFIX_TOKENS, PREFIX.width, PREFIX.mlp),
    _spec("pi05.expert.qkv", EXPERT.facts, CHUNK, EXPERT.qkv, EXPERT.width),
    _spec("pi05.expert.o", EXPERT.facts, CHUNK, EXPERT.width, EXPERT.attention),
    _spec("pi05.expert.gate_up", EXPERT.facts, CHUNK, 2 * EXPERT.mlp, EXPERT.width),
    _spec("pi05.expert.down", EXPERT.facts, CHUNK, EXPERT.width, EXPERT.mlp),
    _spec("pi05.expert.modulation", EXPERT.facts, 10, 3 * EXPERT.width, EXPERT.width, BIAS),
    _spec("pi05.head.action_in", HEAD, CHUNK, EXPERT.width, 32, BIAS),
    _spec("pi05.head.action_out", HEAD, CHUNK, 32, EXPERT.width, BIAS),
    _spec("pi05.head.time", HEAD, 10, EXPERT.width, EXPERT.width, BIAS),
    _spec("pi0.head.state", PI0_HEAD, 1, EXPERT.width, 32, BIAS),
    _spec("pi0.head.action_time", PI0_HEAD, CHUNK, EXPERT.width, 2 * EXPERT.width, BIAS),
    _spec("cosmos3.gen.qkv", COSMOS3.facts, 1560, COSMOS3.qkv, COSMOS3.width),
    _spec("cosmos3.gen.down", COSMOS3.facts, 1560, COSMOS3.width, COSMOS3.mlp),
    _spec("small.one", {}, 1, 1, 1),
    _spec("small.odd", {}, 5, 7, 13, BIAS),
    _spec("small.aligned", {}, 16, 32, 64, BIAS),
    _spec("small.fp32", {}, 3, 24, 20, BIAS, "fp32"),
    _spec("small.fp16", {}, 9, 48, 32, (), "fp16"),
    _spec("small.fp64", {}, 2, 10, 6, BIAS, "fp64"),
)
