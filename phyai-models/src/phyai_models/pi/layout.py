"""Where every token of a batch goes: packing, positions, cache slots, and the lengths that attention reads.

A request has one page of the cache. Its valid prefix tokens come first there, in order, then the suffix
(the action tokens, rewritten at every step). Masked tokens are dropped; where they are kept for comparison,
they are computed but their keys go behind the suffix, where no query looks.
"""

from __future__ import annotations

import attrs
import numpy as np
import torch

from phyai_models.layers import Tokens


@attrs.frozen(eq=False)
class Layout:
    """The packing of one batch, computed on the host once per request.

    Prefix row t of the flat ``[T, width]`` embeddings is row ``gather[t]`` of (image patches of
    ``cameras``, then embeddings of the kept text tokens ``token_ids``). ``rows`` gives every prefix row's
    (request, slot in the padded prefix).
    """

    cameras: torch.Tensor  # bool [B, C]: the images that go through the vision tower
    token_ids: torch.Tensor  # int64, the kept text tokens of all requests
    gather: torch.Tensor  # int64 [T]
    rows: torch.Tensor  # int64 [T, 2]
    prefix: Tokens
    suffix: Tokens


def page_size(prefix_slots: int, suffix: int) -> int:
    """Keys that a page must hold: every prefix slot and the suffix, up to a multiple of 16."""
    return -(-(prefix_slots + suffix) // 16) * 16


def make_layout(
    camera_mask: torch.Tensor,
    token_mask: torch.Tensor,
    tokens: torch.Tensor,
    *,
    patches: int,
    segments: tuple[int, ...],
    page: int,
    drop_masked: bool,
) -> Layout:
    """The layout of a batch.

    ``camera_mask [B, C]``, ``token_mask [B, N]`` and ``tokens [B, N]`` as in
    :class:`phyai_models.pi.inputs.Inputs`; ``patches`` rows an image. ``segments`` are the suffix's
    lengths: tokens of a segment see the prefix, the segments before theirs, and their own. ``page`` is the
    cache's page size.
    """
    batch, cameras = camera_mask.shape
    valid = np.concatenate([np.repeat(camera_mask.numpy(), patches, axis=1), token_mask.numpy()], axis=1)
    lengths = valid.sum(1)
    keep_camera = camera_mask.numpy() if drop_masked else np.ones((batch, cameras), bool)
    keep_token = token_mask.numpy() if drop_masked else np.ones(token_mask.shape, bool)
    keep = np.concatenate([np.repeat(keep_camera, patches, axis=1), keep_token], axis=1)

    # The row of every kept slot in (patches of kept images, then kept text).
    image_rows, text_rows = int(keep_camera.sum()) * patches, int(keep_token.sum())
    row_of = np.zeros(valid.shape, np.int64)
    row_of[:, : cameras * patches][keep[:, : cameras * patches]] = np.arange(image_rows)
    row_of[:, cameras * patches :][keep_token] = image_rows + np.arange(text_rows)

    request, slot = np.nonzero(keep)
    order = np.lexsort((slot, ~valid[request, slot], request))  # by request, valid before masked, then as they were
    request, slot = request[order], slot[order]
    is_valid = valid[request, slot]
    positions = np.maximum(np.cumsum(valid, axis=1) - 1, 0)[request, slot]
    kept = np.bincount(request, minlength=batch)
    within = np.arange(len(request)) - np.repeat(np.cumsum(kept) - kept, kept)
    suffix = sum(segments)
    offset = np.where(is_valid, within, within + suffix)
    prefix = Tokens(
        positions=_long(positions),
        slots=_long(request * page + offset),
        metadata=_metadata(kept, np.arange(batch), lengths),
    )
    return Layout(
        cameras=torch.from_numpy(keep_camera),
        token_ids=tokens[torch.from_numpy(keep_token)],
        gather=_long(row_of[request, slot]),
        rows=_long(np.stack([request, slot], axis=1)),
        prefix=prefix,
        suffix=_suffix(lengths, segments, page),
    )


def _suffix(lengths: np.ndarray, segments: tuple[int, ...], page: int) -> Tokens:
    """A segment attends as a request of its own, over the same page cut off at the segment's end."""
    batch = len(lengths)
    positions = lengths[:, None] + np.arange(sum(segments))
    ends = np.cumsum(segments)
    return Tokens(
        positions=_long(positions.reshape(-1)),
        slots=_long((np.arange(batch)[:, None] * page + positions).reshape(-1)),
        metadata=_metadata(
            np.tile(segments, batch), np.repeat(np.arange(batch), len(segments)), (lengths[:, None] + ends).reshape(-1)
        ),
    )


def _metadata(queries: np.ndarray, pages: np.ndarray, keys: np.ndarray) -> dict[str, torch.Tensor]:
    values = {
        "cu_seqlens_q": np.concatenate([[0], np.cumsum(queries)]),
        "kv_indptr": np.arange(len(pages) + 1),
        "kv_indices": pages,
        "last_page_len": keys,
    }
    return {name: torch.from_numpy(np.ascontiguousarray(value, dtype=np.int32)) for name, value in values.items()}


def _long(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
