"""A residual stream as trained encoders have it, and weights of layers that count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall

#: Weights that hold one matrix for each layer: those matrices' outputs, not the stacks', come out near 1.
STACKED = ("qkv", "o", "fc1", "fc2")
#: One channel in so many is larger than the others, by so much: a trained encoder has a few.
OUTLYING, FACTOR = 256, 50.0


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Give ``x`` a mean, and some channels that are much larger than the rest; scale what the generic synthesis made
    too small."""
    weights, x = call.weights, call.inputs["x"]
    for name in STACKED:
        weights[name].mul_(math.sqrt(weights[name].shape[1]))
    x.add_(1.0)
    x[..., ::OUTLYING] *= FACTOR if x.shape[-1] > OUTLYING else 1.0
