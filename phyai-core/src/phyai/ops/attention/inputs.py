"""Boundaries of ragged sequences: none empty of queries, each with at least as many keys as queries where that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall


def split(total: int, parts: int, generator: Any) -> Any:
    """``parts`` random lengths that sum to ``total``; each at least 1 where that fits."""
    import torch

    if not parts:
        return torch.zeros(0, dtype=torch.int64)
    least = 1 if total >= parts else 0
    extra = torch.randint(0, parts, (total - least * parts,), generator=generator)
    return least + torch.bincount(extra, minlength=parts)


def boundaries(lengths: Any) -> Any:
    """``[0, l0, l0 + l1, …]`` as int32."""
    import torch

    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Replace the boundaries of a ragged call, whose tensors are ``[tokens, heads, head_dim]``."""
    if call.attrs["layout"] != "ragged":
        return
    dims = call.spec.dims
    for name in "qkv":
        call.inputs[name] = call.inputs[name].flatten(0, 1)
    queries = split(dims["Sq"], dims["R"], generator)
    if dims["Sk"] >= dims["Sq"]:
        keys = queries + split(dims["Sk"] - dims["Sq"], dims["R"], generator)
    else:
        keys = split(dims["Sk"], dims["R"], generator)
    call.inputs["cu_seqlens_q"], call.inputs["cu_seqlens_k"] = boundaries(queries), boundaries(keys)
