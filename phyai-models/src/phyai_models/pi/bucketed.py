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
    if not drop_masked:
        return inputs.camera_mask.shape[1], inputs.tokens.shape[1]
    return int(inputs.camera_mask.sum(1).max()), int(inputs.token_mask.sum(1).max())


def to_bucket(inputs: Inputs, cameras: int, prompt: int, *, drop_masked: bool, images: torch.Tensor) -> Inputs:
    """``inputs`` with so many images and token slots per request. Images are written to ``images [B, cameras, …]``.

    With ``drop_masked`` the valid ones come first, in their order; positions do not change, since masked ones have
    none. What fills up is masked: blank images, and token 0.
    """
    if drop_masked:
        camera_order, token_order = _valid_first(inputs.camera_mask), _valid_first(inputs.token_mask)
        camera_mask = inputs.camera_mask.gather(1, camera_order)[:, :cameras]
        tokens, token_mask = (t.gather(1, token_order)[:, :prompt] for t in (inputs.tokens, inputs.token_mask))
    else:
        camera_order = torch.arange(inputs.camera_mask.shape[1]).expand_as(inputs.camera_mask)
        camera_mask, tokens, token_mask = inputs.camera_mask, inputs.tokens, inputs.token_mask
    given = camera_mask.shape[1]
    if torch.equal(camera_order[:, :given], torch.arange(given).expand(inputs.batch, given)):
        images[:, :given].copy_(inputs.images[:, :given], non_blocking=True)
    else:
        for b in range(inputs.batch):
            order = camera_order[b, :given].to(inputs.images.device)
            images[b, :given].copy_(inputs.images[b, order], non_blocking=True)
    images[:, given:].fill_(-1.0)
    fill_up = (0, prompt - tokens.shape[1])
    return Inputs(
        images=images,
        camera_mask=torch.nn.functional.pad(camera_mask, (0, cameras - given)),
        tokens=torch.nn.functional.pad(tokens, fill_up),
        token_mask=torch.nn.functional.pad(token_mask, fill_up),
        state=inputs.state,
        noise=inputs.noise,
    )


def _valid_first(mask: torch.Tensor) -> torch.Tensor:
    return torch.argsort(~mask, dim=1, stable=True)
