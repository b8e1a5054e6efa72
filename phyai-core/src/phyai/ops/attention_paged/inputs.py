"""Metadata of a paged call: random lengths, pages in no order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phyai.ops.attention.inputs import boundaries, split

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Replace the four metadata tensors. Last pages are full, or lack up to three keys."""
    import torch

    dims = call.spec.dims
    pages = split(dims["entries"], dims["B"], generator)
    if call.attrs["single_page"]:
        pages = torch.ones(dims["B"], dtype=torch.int64)
    missing = torch.randint(0, min(4, dims["page_size"]), (dims["B"],), generator=generator)
    call.metadata["cu_seqlens_q"] = boundaries(split(dims["T"], dims["B"], generator))
    call.metadata["kv_indptr"] = boundaries(pages)
    call.metadata["kv_indices"] = torch.randperm(dims["pages"], generator=generator)[: dims["entries"]].to(torch.int32)
    call.metadata["last_page_len"] = (dims["page_size"] - missing).to(torch.int32)
