"""Lengths of prefixes that leave room for a request's own tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Replace ``lengths``: from one key to as many as fit."""
    import torch

    dims = call.spec.dims
    if dims["B"]:
        most = dims["page_size"] - dims["M"] // dims["B"]
        lengths = torch.randint(1, max(most, 1) + 1, (dims["B"],), generator=generator)
        call.inputs["lengths"] = lengths.to(torch.int32).to(call.inputs["lengths"].device)
