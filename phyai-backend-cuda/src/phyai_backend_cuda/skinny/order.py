"""The order of quantized weights that ``csrc/skinny.cu`` multiplies: every thread's own codes together.

A warpgroup multiplies 64 rows by 16 of K at a time. Its thread 32w + 4g + q holds, of rows 16w + g (h = 0) and
16w + g + 8 (h = 1), elements 2q + e and 8 + 2q + e (p = 0, 1; e = 0, 1). Rows are filled up to whole 64 with codes
that stand for zero. Below, ``nt`` counts 64 rows and ``c`` 64 of K; the last index runs fastest:

===== =====================================================================================
fp8   bytes ``[nt, c, i, w, g, q, s, p, e, h]``: element 64c + 32i + 16s + 8p + 2q + e
int4  nibbles ``[nt, c, w, g, q, s, e, p, h]``, the low one first: element 64c + 16s + 8p + 2q + e
pairs 16-bit values of a group of K ``[nt, group, w, g, h]``: scales, and zero points
===== =====================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROWS = CHUNK = 64


def _padded(rows: torch.Tensor, value: int = 0) -> torch.Tensor:
    """Whole 64 rows; new ones hold ``value``."""
    import torch

    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % ROWS), value=value)


def pack_fp8(codes: torch.Tensor) -> torch.Tensor:
    """uint8 ``[N, K]`` → flat uint8."""
    _, k = codes.shape
    parts = _padded(codes).reshape(-1, 4, 2, 8, k // CHUNK, 2, 2, 2, 4, 2)  # nt w h g c i s p q e
    return parts.permute(0, 4, 5, 1, 3, 8, 6, 7, 9, 2).reshape(-1)


def unpack_fp8(packed: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """The inverse of :func:`pack_fp8`."""
    parts = packed.view(-1, k // CHUNK, 2, 4, 8, 4, 2, 2, 2, 2)  # nt c i w g q s p e h
    return parts.permute(0, 3, 9, 4, 1, 2, 6, 7, 5, 8).reshape(-1, k)[:n].contiguous()


def pack_int4(codes: torch.Tensor, zero: int = 8) -> torch.Tensor:
    """uint8 ``[N, K]`` of values 0 to 15 → flat uint8, two to a byte. ``zero`` fills the last rows up."""
    _, k = codes.shape
    parts = _padded(codes, zero).reshape(-1, 4, 2, 8, k // CHUNK, 4, 2, 4, 2)  # nt w h g c s p q e
    low, high = parts.permute(0, 4, 1, 3, 7, 5, 8, 6, 2).unbind(-1)
    return (low | high << 4).reshape(-1)


def unpack_int4(packed: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """The inverse of :func:`pack_int4`."""
    import torch

    parts = torch.stack((packed & 15, packed >> 4), -1).view(-1, k // CHUNK, 4, 8, 4, 4, 2, 2, 2)  # nt c w g q s e p h
    return parts.permute(0, 2, 8, 3, 1, 5, 7, 4, 6).reshape(-1, k)[:n].contiguous()


def pack_pairs(values: torch.Tensor) -> torch.Tensor:
    """``[N, groups]`` → flat, values of the two rows of a thread beside each other."""
    _, groups = values.shape
    return _padded(values).reshape(-1, 4, 2, 8, groups).permute(0, 4, 1, 3, 2).reshape(-1)
