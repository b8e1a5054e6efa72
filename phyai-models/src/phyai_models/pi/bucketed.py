"""Bringing a batch to the size of a bucket, which changes no answer."""

from __future__ import annotations

import attrs
import torch

from phyai_models.pi.inputs import Inputs


@attrs.frozen
class Shape:
    """What one recording serves: so many requests, images of each, token slots of each, and Euler steps.

    ``lengths`` are the valid prefix tokens of every request, where a recording serves one set of lengths only.
    """

    batch: int
    cameras: int
    prompt: int
    steps: int
    lengths: tuple[int, ...] | None = None

    def fits(self, other: Shape) -> bool:
        """Whether a recording of this shape can serve what asks for ``other``."""
        return (
            (self.batch, self.steps, self.lengths) == (other.batch, other.steps, other.lengths)
            and self.cameras >= other.cameras
            and self.prompt >= other.prompt
        )

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.cameras} cameras, {self.prompt} prompt tokens, {self.steps} steps"


def needs(inputs: Inputs, *, drop_masked: bool) -> tuple[int, int]:
    """How many images and token slots of each request have to be computed."""
    cameras = cameras_needed(inputs.camera_mask, drop_masked=drop_masked)
    return cameras, int(inputs.token_mask.sum(1).max()) if drop_masked else inputs.tokens.shape[1]


def cameras_needed(camera_mask: torch.Tensor, *, drop_masked: bool) -> int:
    """How many images of each request have to be computed."""
    return int(camera_mask.sum(1).max()) if drop_masked else camera_mask.shape[1]


@attrs.frozen(eq=False)
class Filling:
    """How images or tokens under the mask ``given [B, N]`` fill a bucket; others under the same mask fill it alike.

    Where masked ones are dropped, the valid ones come first, in their order; positions do not change, since masked
    ones have none. What fills up is masked: blank images, and token 0. An ``order`` of None is the order that is given.
    """

    given: torch.Tensor
    mask: torch.Tensor  # [B, size of the bucket]
    order: torch.Tensor | None

    @classmethod
    def of(cls, mask: torch.Tensor, size: int, *, drop_masked: bool) -> Filling:
        """The filling of a bucket of ``size``."""
        order = _valid_first(mask) if drop_masked else None
        ordered = mask if order is None else mask.gather(1, order)
        copied = mask.clone()  # the caller may reuse its own
        return cls(copied, copied if ordered.shape[1] == size and order is None else _filled(ordered, size), order)

    def serves(self, mask: torch.Tensor) -> bool:
        """Whether ``mask`` is the same."""
        return torch.equal(self.given, mask)

    def tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """``[B, N]`` in the bucket's order and number."""
        ordered = tokens if self.order is None else tokens.gather(1, self.order)
        return _filled(ordered, self.mask.shape[1])

    def images(self, images: torch.Tensor, out: torch.Tensor) -> None:
        """Write ``images [B, C, …]`` to ``out [B, cameras, …]``."""
        given = min(images.shape[1], out.shape[1])
        if self.order is None:
            out[:, :given].copy_(images[:, :given], non_blocking=True)
        else:
            for b in range(len(images)):
                order = self.order[b, :given].to(images.device)
                out[b, :given].copy_(images[b, order], non_blocking=True)
        if given < out.shape[1]:
            out[:, given:].fill_(-1.0)


def _filled(values: torch.Tensor, size: int) -> torch.Tensor:
    """``[B, N]`` as ``[B, size]``: cut off, or filled up with zeros."""
    if values.shape[1] == size:
        return values
    return torch.nn.functional.pad(values, (0, size - values.shape[1]))


def _valid_first(mask: torch.Tensor) -> torch.Tensor | None:
    """The order that brings valid ones to the front, or None where they are there."""
    order = torch.argsort(~mask, dim=1, stable=True)
    return None if torch.equal(order, torch.arange(mask.shape[1]).expand_as(order)) else order
