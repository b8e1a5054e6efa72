"""The record of the experts of π0.5 and π0: all of their steps and layers in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.op import FLOATS
from phyai.predicates import match

#: A row in front of the actions, and what they pass on their way in: π0's expert has these, π0.5's has none.
_OPTIONAL = ("dtype.fixed", "dtype.time", "dtype.embed_weight", "dtype.embed_bias")

#: What ``csrc/expert/expert.cu`` was written for: one request to an expert of these sizes, on Hopper. It adds up
#: squares in steps of 2^-20 (``SQUARES``), which a smaller eps would let show.
_EXPERT: Mapping[str, Any] = {
    "device.type": "cuda", "device.vendor": "nvidia", "device.arch": "sm90", "device.sm_count": ">=128",
    "lib.cupy": ">=13", "attrs.activation": "gelu_tanh", "attrs.heads": 8, "attrs.eps": ">=1e-6",
    "shape.kv_heads": 1, "shape.head_dim": 256,
    "shape.D": 1024, "shape.I": 4096, "shape.A": 32, "shape.B": 1,
    "any_of": [
        {"shape.M": "1..56", **dict.fromkeys(_OPTIONAL)},
        {"shape.M": "1..55", **{name: [*FLOATS] for name in _OPTIONAL}},
    ],
    **dict.fromkeys(("dtype.x", "dtype.y", "dtype.cos_sin", "dtype.out_bias"), "fp32"),
    **dict.fromkeys((f"dtype.{n}" for n in ("k_cache", "v_cache", "qkv", "o", "gate_up", "down")), "bf16"),
}  # fmt: skip

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        id="cuda.expert_steps.persistent",
        op="expert_steps",
        when=match(_EXPERT),
        prepare="phyai_backend_cuda.expert.steps:prepare",
        capture=Capture.AFTER_WARMUP,
        numerics=Numerics(reproducible=True),
        band=Band.SPECIALIZED,
        specializes_on=("shape.M",),
        doc="all steps and layers in one launch, of rows whose root mean square stays below 8,192; "
        "keeps packed weights of its own",
    ),
)
