"""Runs a π model on batches: layout on the host, one transfer, then tensors only."""

from __future__ import annotations

import attrs
import torch
from phyai.errors import InputError

from phyai_models.layers import KVCache
from phyai_models.pi.config import PiConfig
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.layout import Layout, make_layout
from phyai_models.pi.model import PiModel


class Runner:
    """Inference with one model. Keeps one cache, as large as the largest batch so far."""

    def __init__(self, model: PiModel, config: PiConfig) -> None:
        self.model = model
        self.config = config
        self._cache: KVCache | None = None

    def layout(self, inputs: Inputs) -> Layout:
        """Where the tokens of ``inputs`` go.

        Raises:
            InputError: masked tokens are to be computed, and there are more than a page holds.
        """
        limit = self.config.tokenizer_max_length
        if not self.model.savings.drop_masked and inputs.tokens.shape[1] > limit:
            raise InputError(f"{inputs.tokens.shape[1]} token slots; with drop_masked off at most {limit} fit")
        return make_layout(
            inputs.camera_mask,
            inputs.token_mask,
            inputs.tokens,
            patches=self.config.vision.patches,
            segments=self.model.segments,
            page=self.model.page_size,
            drop_masked=self.model.savings.drop_masked,
        )

    @torch.no_grad()
    def __call__(self, inputs: Inputs, steps: int, stages: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
        """Actions ``[B, chunk_size, max_action_dim]``, float32, on the CPU.

        ``stages``, when given, receives what every stage computed, float32, under the names
        ``vision.camN``, ``prefix.embeds``, ``prefix.pad_mask``, ``stepNN.x`` and ``stepNN.v``.
        """
        model, device = self.model, self.model.device
        layout = self.layout(inputs)
        prefix, suffix = layout.prefix.to(device), layout.suffix.to(device)
        cache = self.cache(inputs.batch)
        patches = model.embed_images(inputs.images[layout.cameras].to(device))
        text = model.embed_tokens(layout.token_ids.to(device))
        gather = layout.gather.to(device)
        if stages is not None:
            self._trace_prefix(inputs, layout, patches, text, stages)
        model.fill(torch.cat([patches.to(text.dtype), text])[gather], prefix, cache)

        def trace(name: str, value: torch.Tensor) -> None:
            if stages is not None:
                stages[name] = value.to("cpu", torch.float32, copy=True)

        actions = model.sample(inputs.noise.to(device), inputs.state.to(device), steps, suffix, cache, trace)
        return actions.to("cpu", torch.float32)

    def cache(self, batch: int) -> KVCache:
        """A cache for ``batch`` requests."""
        if self._cache is None or self._cache.keys[0].shape[0] < batch:
            self._cache = None  # the old one goes before the new one comes
            self._cache = self.model.new_cache(batch)
        return KVCache(tuple(k[:batch] for k in self._cache.keys), tuple(v[:batch] for v in self._cache.values))

    def _trace_prefix(
        self, inputs: Inputs, layout: Layout, patches: torch.Tensor, text: torch.Tensor, stages: dict[str, torch.Tensor]
    ) -> None:
        """The prefix in the padded form of the published implementations, where nothing was dropped.

        What was computed is put in its place; what was dropped is computed here, for the record only.
        """
        per_image, width = self.config.vision.patches, patches.shape[-1]
        batch, cameras = inputs.camera_mask.shape
        images = torch.empty(batch, cameras, per_image, width)
        images[layout.cameras] = patches.float().cpu().view(-1, per_image, width)
        if not layout.cameras.all():
            blank = torch.full((1, *inputs.images.shape[2:]), -1.0, device=self.model.device)
            images[~layout.cameras] = self.model.embed_images(blank).float().cpu()
        kept = inputs.token_mask if self.model.savings.drop_masked else torch.ones_like(inputs.token_mask)
        words = torch.empty(*kept.shape, width)
        words[kept] = text.float().cpu()
        if not kept.all():
            words[~kept] = self.model.embed_tokens(inputs.tokens[~kept].to(self.model.device)).float().cpu()
        for c in range(cameras):
            stages[f"vision.cam{c}"] = images[:, c].clone()
        stages["prefix.embeds"] = torch.cat([images.flatten(1, 2), words], dim=1)
        seen = inputs.camera_mask.repeat_interleave(per_image, dim=1)
        stages["prefix.pad_mask"] = torch.cat([seen, inputs.token_mask], dim=1)


@attrs.frozen
class BatchResult:
    """What came of a batch in lerobot's names: ``actions [B, chunk_size, action_dim]``, still normalized, and, when
    they were asked for, the stages by name."""

    actions: torch.Tensor
    stages: dict[str, torch.Tensor] = attrs.field(factory=dict)
