"""Indices of a sharded table: some of them outside the shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Replace ``ids`` where the table is a shard: up to half a shard before and after it."""
    import torch

    start = call.attrs["start"]
    if start is None:
        return
    ids, rows = call.inputs["ids"], call.spec.dims["V"]
    low, high = max(0, start - rows // 2), start + rows + rows // 2
    call.inputs["ids"] = torch.randint(low, high, ids.shape, generator=generator).to(ids.dtype)
