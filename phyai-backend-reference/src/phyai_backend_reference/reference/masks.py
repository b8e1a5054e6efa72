"""Which keys a query may see. Boolean masks, True where it may; all from tensors on the device, without a wait."""

from __future__ import annotations

import torch


def visible(distance: torch.Tensor, causal: bool, window: int | None) -> torch.Tensor:
    """Which keys are visible, by how far they lie before the query (negative: after it)."""
    keep = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        keep &= distance >= 0
    if window is not None:
        keep &= distance < window
    return keep


def padded(queries: int, keys: int, causal: bool, window: int | None, device: torch.device) -> torch.Tensor | None:
    """``[queries, keys]`` of one sequence whose last query is aligned to its last key; None when all are visible."""
    if not causal and window is None:
        return None
    position = torch.arange(queries, device=device)[:, None] + keys - queries
    return visible(position - torch.arange(keys, device=device), causal, window)


def both(mask: torch.Tensor | None, keep: torch.Tensor | None) -> torch.Tensor | None:
    """What both masks keep; None keeps all."""
    if mask is None or keep is None:
        return keep if mask is None else mask
    return mask & keep


def segment(boundaries: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For every row: which segment ``boundaries[s]:boundaries[s + 1]`` it is in, and its index in it.

    Rows after the last boundary are in segment ``len(boundaries) - 1``, which is none.

    >>> [t.tolist() for t in segment(torch.tensor([0, 2, 2, 5]), 6)]
    [[0, 0, 2, 2, 2, 3], [0, 1, 0, 1, 2, 0]]
    """
    row = torch.arange(rows, device=boundaries.device)
    of = torch.searchsorted(boundaries[1:].contiguous(), row, right=True)
    return of, row - boundaries[of]


def segmented(
    query: tuple[torch.Tensor, torch.Tensor],
    key: tuple[torch.Tensor, torch.Tensor],
    query_lengths: torch.Tensor,
    key_lengths: torch.Tensor,
    causal: bool,
    window: int | None,
) -> torch.Tensor:
    """``[queries, keys]`` where each row is ``(segment, index in it)``: a query sees keys of its own segment only.

    Rows whose segment is ``len(lengths)``, and keys whose index is not below their segment's length, belong to nothing.
    """
    (q_of, q_index), (k_of, k_index) = query, key
    queries, keys = (torch.nn.functional.pad(n, (0, 1)) for n in (query_lengths, key_lengths))
    position = q_index + keys[q_of] - queries[q_of]
    keep = (q_of[:, None] == k_of) & (k_of < len(key_lengths)) & (k_index < keys[k_of])
    return keep & visible(position[:, None] - k_index, causal, window)
