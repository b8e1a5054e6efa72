"""Short convolutions of Qwen3.5's gated delta networks."""

from __future__ import annotations

from phyai.op import ArgSpec

ALL = ("x", "conv_state", "weight", "bias", "y")
QWEN = {"model.family": "qwen3_5", "role": "prefix"}
SILU = {"activation": "silu"}

ARG_SPECS = (
    ArgSpec("qwen3_5.prefill", {"B": 1, "C": 6144, "T": 256, "K": 4}, {}, SILU, (), QWEN),
    ArgSpec("qwen3_5.step", {"B": 1, "C": 6144, "T": 1, "K": 4}, {}, SILU, ("conv_state",), QWEN),
    ArgSpec("small.plain", {"B": 2, "C": 3, "T": 5, "K": 4}),
    ArgSpec("small.state", {"B": 2, "C": 3, "T": 5, "K": 4}, {}, SILU, ("conv_state", "bias")),
    ArgSpec("small.short", {"B": 1, "C": 5, "T": 1, "K": 3}, {}, {}, ("conv_state",)),
    ArgSpec("small.fp32", {"B": 1, "C": 4, "T": 6, "K": 2}, dict.fromkeys(ALL, "fp32"), SILU, ("bias",)),
    ArgSpec("small.fp64", {"B": 1, "C": 2, "T": 3, "K": 3}, dict.fromkeys(ALL, "fp64"), {}, ("conv_state",)),
)
