"""Projections of Gemma with the norm in front of them."""

from __future__ import annotations

from attrs import evolve

from phyai.ops import qkv_rope_kv_write
from phyai.ops.rms_norm_add.arg_specs import GEMMA
from phyai.ops.shapes import CHUNK, EXPERT, PREFIX

BLOCKS = {spec.name: evolve(spec, attrs={**spec.attrs, **GEMMA}) for spec in qkv_rope_kv_write.OP.arg_specs}

ARG_SPECS = (
    BLOCKS["pi05.prefix"],
    evolve(
        BLOCKS["pi05.expert"], name="pi0.expert", dims={**BLOCKS["pi05.expert"].dims, "T": CHUNK + 1},
        facts={**EXPERT.facts, "model.family": "pi0"},
    ),
    evolve(BLOCKS["pi05.prefix"], name="pi0.prefix", facts={**PREFIX.facts, "model.family": "pi0"}),
    *(spec for name, spec in BLOCKS.items() if name.startswith("small.")),
)  # fmt: skip
