"""``reference.rope``: rotate pairs of every head by the angles of its position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, style: str) -> torch.Tensor:
    """The leading ``2 * cos.shape[-1]`` elements of every head rotated pair by pair, the rest as it is."""
    x, cos, sin = wide(x, cos, sin)
    head, rest = x.split([2 * cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    a, b = head.chunk(2, dim=-1) if style == "neox" else (head[..., 0::2], head[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    turned = torch.cat((a, b), dim=-1) if style == "neox" else torch.stack((a, b), dim=-1).flatten(-2)
    return torch.cat((turned, rest), dim=-1)


def axis_of_frequency(sections: str, interleaved: bool) -> list[int]:
    """Which of the three axes every frequency takes its position from.

    >>> axis_of_frequency("2,1,1", False), axis_of_frequency("4,2,2", True)
    ([0, 0, 1, 2], [0, 1, 2, 0, 1, 2, 0, 0])
    """
    counts = [int(n) for n in sections.split(",")]
    if not interleaved:
        return [axis for axis, count in enumerate(counts) for _ in range(count)]
    return [i % 3 if i % 3 and i // 3 < counts[i % 3] else 0 for i in range(sum(counts))]


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    cos_sin = weights["cos_sin"]
    style = attribute(facts, "style", "neox")
    q_dtype, k_dtype = dtype_of(facts, "q_out"), dtype_of(facts, "k_out")
    sections = attribute(facts, "mrope_sections", None)
    axes = None
    if sections is not None:
        axes = axis_of_frequency(sections, attribute(facts, "mrope_interleaved", False))
        axes = torch.tensor(axes, device=cos_sin.device)
    frequency = torch.arange(cos_sin.shape[-1] // 2, device=cos_sin.device)

    def angles(positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, ``[...M, 1, rotary_dim / 2]``: the same for every head."""
        if axes is None:
            rows = cos_sin[positions]
            return rows[..., None, : len(frequency)], rows[..., None, len(frequency) :]
        per_frequency = positions.movedim(0, -1)[..., None, axes]
        return cos_sin[per_frequency, frequency], cos_sin[per_frequency, frequency + len(frequency)]

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        positions: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_out, k_out = out or (None, None)
        cos, sin = angles(positions)
        return give(rotate(q, cos, sin, style), q_dtype, q_out), give(rotate(k, cos, sin, style), k_dtype, k_out)

    return Prepared(run, refresh=in_place(weights))
