"""Feed-forward blocks of Gemma with the norm in front of them."""

from __future__ import annotations

from attrs import evolve

from phyai.op import ArgSpec
from phyai.ops import gated_mlp
from phyai.ops.rms_norm_add.arg_specs import GEMMA
from phyai.ops.shapes import CHUNK, EXPERT, PREFIX

BLOCKS = {spec.name: spec for spec in gated_mlp.OP.arg_specs}


def _behind(block: ArgSpec, **more: object) -> ArgSpec:
    return evolve(block, attrs={**block.attrs, **more})


ARG_SPECS = (
    _behind(BLOCKS["pi05.prefix"], **GEMMA),
    evolve(
        _behind(BLOCKS["pi05.expert"], **GEMMA), name="pi0.expert", dims={**BLOCKS["pi05.expert"].dims, "M": CHUNK + 1},
        facts={**EXPERT.facts, "model.family": "pi0"},
    ),
    evolve(_behind(BLOCKS["pi05.prefix"], **GEMMA), name="pi0.prefix", facts={**PREFIX.facts, "model.family": "pi0"}),
    _behind(BLOCKS["small.odd"]),
    _behind(BLOCKS["small.fp32"], eps=1e-5),
    _behind(BLOCKS["small.fp64"], **GEMMA),
)  # fmt: skip
