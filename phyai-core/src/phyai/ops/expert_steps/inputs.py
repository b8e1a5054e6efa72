"""Lengths of prefixes that leave room for a request's own tokens, and that room; weights of layers that count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall

#: Weights that hold one tensor for each layer or step: those tensors' outputs, not the stacks', come out near 1.
STACKED = ("qkv", "o", "gate_up", "down")
#: About what a trained modulation adds to 1, and multiplies a branch by.
MODULATION = 0.3


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Replace ``lengths``: from one key to as many as fit. Scale what the generic synthesis made too small."""
    import torch

    dims, weights = call.spec.dims, call.weights
    for name in STACKED:
        weights[name].mul_(math.sqrt(weights[name].shape[1]))
    weights["modulation"].mul_(MODULATION * math.sqrt(math.prod(weights["modulation"].shape[1:])))
    if "time" in weights:
        weights["time"].mul_(math.sqrt(weights["time"].shape[1]))
    if dims["B"]:
        most = dims["page_size"] - dims["M"] // dims["B"] - (call.inputs["fixed"] is not None)
        lengths = torch.randint(1, max(most, 1) + 1, (dims["B"],), generator=generator)
        call.inputs["lengths"] = lengths.to(torch.int32).to(call.inputs["lengths"].device)


def behind_prefixes(inputs: Mapping[str, Any]) -> Any:
    """Which slots of the caches lie behind the prefix of a request: bool ``[pages, page_size, 1, 1]``."""
    import torch

    lengths, (_, pages, page_size, _, _) = inputs["lengths"], inputs["k_cache"].shape
    first = torch.full((pages,), page_size, device=lengths.device)  # the other pages are no request's
    first[: len(lengths)] = lengths
    return (torch.arange(page_size, device=lengths.device) >= first[:, None])[:, :, None, None]
