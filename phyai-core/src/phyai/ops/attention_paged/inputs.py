"""Metadata of a paged call: random lengths, pages in no order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phyai.ops.attention.inputs import boundaries, split

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Replace the four metadata tensors. Last pages are full, or lack up to three keys; unless lengths are fixed, up to
    two rows of q at the end belong to no request, as in a bucket that is not full."""
    import torch

    dims = call.spec.dims
    pages = split(dims["entries"], dims["B"], generator)
    if call.attrs["single_page"]:
        pages = torch.ones(dims["B"], dtype=torch.int64)
    missing = torch.randint(0, min(4, dims["page_size"]), (dims["B"],), generator=generator)
    most = 0 if call.attrs["fixed_lengths"] else min(2, max(0, dims["T"] - dims["B"]))
    served = dims["T"] - int(torch.randint(0, most + 1, (), generator=generator))
    call.metadata["cu_seqlens_q"] = boundaries(split(served, dims["B"], generator))
    call.metadata["kv_indptr"] = boundaries(pages)
    call.metadata["kv_indices"] = torch.randperm(dims["pages"], generator=generator)[: dims["entries"]].to(torch.int32)
    call.metadata["last_page_len"] = (dims["page_size"] - missing).to(torch.int32)
