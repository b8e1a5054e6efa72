"""A batch of a π model launched kernel by kernel at its own lengths, and what each of its stages computes."""

from __future__ import annotations

import torch
from phyai.errors import InputError

from phyai_models.layers import KVCache
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.layout import Layout, make_layout
from phyai_models.pi.model import PiModel


def layout_of(model: PiModel, inputs: Inputs) -> Layout:
    """Where the tokens of ``inputs`` go.

    Raises:
        InputError: masked tokens are to be computed, and there are more than a page holds.
    """
    limit, drop_masked = model.config.tokenizer_max_length, model.savings.drop_masked
    if not drop_masked and inputs.tokens.shape[1] > limit:
        raise InputError(f"{inputs.tokens.shape[1]} token slots; with drop_masked off at most {limit} fit")
    return make_layout(
        inputs.camera_mask, inputs.token_mask, inputs.tokens, patches=model.config.vision.patches,
        segments=model.segments, page=model.page_size, drop_masked=drop_masked,
    )  # fmt: skip


def actions_of(
    model: PiModel, inputs: Inputs, steps: int, cache: KVCache, stages: dict[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """Actions ``[B, chunk_size, max_action_dim]`` on the model's device; ``stages`` as for
    :class:`phyai_models.pi.runner.Runner`.

    Raises:
        InputError: as :func:`layout_of`.
    """
    device, layout = model.device, layout_of(model, inputs)
    prefix, suffix = layout.prefix.to(device), layout.suffix.to(device)
    images = inputs.images[layout.cameras.to(inputs.images.device)]
    patches = model.embed_images(images.to(device, torch.float32))
    text = model.embed_tokens(layout.token_ids.to(device))
    gather = layout.gather.to(device)
    if stages is not None:
        _trace_prefix(model, inputs, layout, patches, text, stages)
    model.fill(torch.cat([patches.to(text.dtype), text])[gather], prefix, cache)

    def trace(name: str, value: torch.Tensor) -> None:
        assert stages is not None
        stages[name] = value.to("cpu", torch.float32, copy=True)

    noise, state = inputs.noise.to(device), inputs.state.to(device)
    return model.sample(noise, state, steps, suffix, cache, None if stages is None else trace)


def _trace_prefix(
    model: PiModel, inputs: Inputs, layout: Layout, patches: torch.Tensor, text: torch.Tensor,
    stages: dict[str, torch.Tensor],
) -> None:  # fmt: skip
    """The prefix in the padded form of the published implementations, where nothing was dropped.

    What was computed is put in its place; what was dropped is computed here, for the record only.
    """
    per_image, width = model.config.vision.patches, patches.shape[-1]
    batch, cameras = inputs.camera_mask.shape
    images = torch.empty(batch, cameras, per_image, width)
    images[layout.cameras] = patches.float().cpu().view(-1, per_image, width)
    if not layout.cameras.all():
        blank = torch.full((1, *inputs.images.shape[2:]), -1.0, device=model.device)
        images[~layout.cameras] = model.embed_images(blank).float().cpu()
    kept = inputs.token_mask if model.savings.drop_masked else torch.ones_like(inputs.token_mask)
    words = torch.empty(*kept.shape, width)
    words[kept] = text.float().cpu()
    if not kept.all():
        words[~kept] = model.embed_tokens(inputs.tokens[~kept].to(model.device)).float().cpu()
    for c in range(cameras):
        stages[f"vision.cam{c}"] = images[:, c].clone()
    stages["prefix.embeds"] = torch.cat([images.flatten(1, 2), words], dim=1)
    seen = inputs.camera_mask.repeat_interleave(per_image, dim=1)
    stages["prefix.pad_mask"] = torch.cat([seen, inputs.token_mask], dim=1)
