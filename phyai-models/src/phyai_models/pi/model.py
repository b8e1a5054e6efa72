"""What π0 and π0.5 compute alike: a prefix of images and text fills a cache that an expert attends to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from phyai.dispatch import Site
from phyai.quant.weight import QuantizedWeight

from phyai_models.layers import Embedding, KVCache, Layer, Linear, Scope, Tokens
from phyai_models.pi.config import PiConfig
from phyai_models.pi.expert import AdaExpert, Expert
from phyai_models.pi.flow import Trace, embed_time, euler, times
from phyai_models.pi.gemma import GemmaPrefix, rotary_table
from phyai_models.pi.layout import page_size
from phyai_models.pi.precision import Precision
from phyai_models.pi.siglip import Siglip
from phyai_models.pi.steps import AllSteps
from phyai_models.weights import WeightSource

#: Where lerobot's checkpoints keep the towers.
PALIGEMMA = "paligemma_with_expert.paligemma.model"
EXPERT = "paligemma_with_expert.gemma_expert.model"

#: What a step needs to know of its time: tensors whose first dimension counts steps.
Condition = tuple[torch.Tensor, ...]


@attrs.frozen
class Savings:
    """Work that is left out because the answer does not depend on it. Each leaves the result as it was.

    ``drop_masked``: masked text tokens and missing cameras are not computed. ``skip_last_layer``: of the last
    prefix layer only keys and values are computed. ``hoist_conditions``: what depends on the time of a step
    alone is computed once per number of steps.
    """

    drop_masked: bool = True
    skip_last_layer: bool = True
    hoist_conditions: bool = True

    @classmethod
    def none(cls) -> Savings:
        """Compute everything, as the published implementations do."""
        return cls(drop_masked=False, skip_last_layer=False, hoist_conditions=False)


def tensors_of(weight: Any) -> list[torch.Tensor]:
    """The tensors that a plain or quantized weight consists of."""
    if isinstance(weight, torch.Tensor):
        return [weight]
    return list(weight.tensors().values()) if isinstance(weight, QuantizedWeight) else []


class PiModel(Layer):
    """The mathematics of a π model on prepared tensors. Subclasses say how the suffix is made.

    ``segments`` are the suffix's lengths: tokens of a segment see the prefix, earlier segments and their own.
    """

    segments: tuple[int, ...]
    expert: Expert | AdaExpert

    def __init__(
        self, scope: Scope, config: PiConfig, precision: Precision, savings: Savings, max_batch: int = 1
    ) -> None:
        self.config, self.precision, self.savings = config, precision, savings
        self.device, self.dispatcher = scope.device, scope.dispatcher
        self.max_batch = max_batch
        self.segments = self.suffix_segments(config)
        scope = scope.at("", cache={"pages": max_batch, "page_size": self.page_size})
        towers = scope.at("", dtype=precision.towers, norm_dtype=precision.norms)
        patches, images = config.vision.patches, len(config.cameras) * config.vision.patches
        vision = scope.at("", dtype=precision.vision, norm_dtype=precision.vision, role="vision",
                          rows=(patches, max_batch * images))  # fmt: skip
        prefix = (patches if scope.capture else 1, max_batch * (images + config.tokenizer_max_length))
        language = towers.at("language_model", f"{PALIGEMMA}.language_model", role="prefix", rows=prefix)
        width = config.language_model.width
        self.cos_sin = rotary_table(config.language_model, self.page_size, precision.towers, scope.device)
        self.vision = Siglip(
            vision.at("vision_tower", f"{PALIGEMMA}.vision_tower.vision_model"),
            vision.at("multi_modal_projector", f"{PALIGEMMA}.multi_modal_projector.linear"),
            config.vision,
            width,
        )
        self.embed_tokens = Embedding(language.at("embed_tokens"), config.vocab_size, width, width**0.5)
        self.prefix = GemmaPrefix(
            language, config.language_model, self.cos_sin, full_last_layer=not savings.skip_last_layer
        )
        self.heads = scope.at("", dtype=precision.heads, norm_dtype=precision.heads, role="head")
        suffix = sum(self.segments)
        self.expert_scope = towers.at("expert", EXPERT, role="expert", rows=(suffix, max_batch * suffix))
        self._schedules: dict[int, list[Condition]] = {}
        self.all_steps = AllSteps(self)
        action, expert = config.max_action_dim, config.expert.width
        self.action_in_proj = Linear(self.heads.at("action_in_proj"), action, expert, bias=True)
        self.action_out_proj = Linear(self.heads.at("action_out_proj"), expert, action, bias=True)

    @staticmethod
    def suffix_segments(config: PiConfig) -> tuple[int, ...]:
        """The lengths of the suffix's segments."""
        raise NotImplementedError

    @property
    def page_size(self) -> int:
        """Keys that a request's page of the cache holds."""
        config = self.config
        prefix = len(config.cameras) * config.vision.patches + config.tokenizer_max_length
        return page_size(prefix, config.chunk_size + 1)

    def refresh(self, source: WeightSource) -> None:
        """New weights in place of the old ones, also in what follows from them for the steps in use."""
        super().refresh(source)
        for steps, conditions in self._schedules.items():
            for old, new in zip(conditions, self._conditions(steps), strict=True):
                for old_rows, new_rows in zip(old, new, strict=True):
                    old_rows.copy_(new_rows)
        self.all_steps.refresh()

    def parameter_bytes(self) -> int:
        """Bytes of all parameters that call sites hold, each counted once."""
        tensors = (t for site in self.dispatcher.sites for w in site.weights.values() for t in tensors_of(w))
        return sum({t.data_ptr(): t.nbytes for t in tensors}.values())

    def recording_bytes(self, batch: int, cameras: int, prompt: int) -> int:
        """About what a recording takes: the cache, and the intermediate results of the widest layer of the prefix."""
        language, item = self.config.language_model, self.precision.towers.itemsize
        rows = batch * (cameras * self.config.vision.patches + prompt)
        cache = 2 * language.depth * self.max_batch * self.page_size * language.num_kv_heads * language.head_dim
        return (cache + rows * (3 * language.mlp_dim + 6 * language.width)) * item

    def new_cache(self) -> KVCache:
        """A cache with a page for each of ``max_batch`` requests."""
        language = self.config.language_model
        return KVCache.empty(
            language.depth, self.max_batch, self.page_size, language.num_kv_heads, language.head_dim,
            self.precision.towers, self.device,
        )  # fmt: skip

    # The prefix

    def embed_images(self, images: torch.Tensor) -> torch.Tensor:
        """Images ``[N, 3, S, S]`` in [-1, 1], float32, to ``[N * patches, width]`` in the vision tower's precision."""
        return self.vision(images).flatten(0, 1)

    def embed_images_into(self, rows: torch.Tensor, images: torch.Tensor) -> None:
        """The same, written to ``rows [N * patches, width]`` of any dtype."""
        if rows.dtype != self.precision.vision:
            rows.copy_(self.embed_images(images))
        else:
            self.vision(images, rows.view(len(images), self.config.vision.patches, rows.shape[-1]))

    def fill(self, embeddings: torch.Tensor, tokens: Tokens, cache: KVCache) -> None:
        """Write the keys and values of prefix ``embeddings [T, width]``."""
        self.prefix(embeddings.to(self.precision.towers), tokens, cache)

    # The flow

    def fixed(self, state: torch.Tensor) -> torch.Tensor | None:
        """What of the suffix is the same at every step."""
        return None

    def condition(self, time: torch.Tensor) -> Condition:
        """What the steps at times ``time [S]`` need to know of them, given the embedded times."""
        raise NotImplementedError

    def velocity(
        self, x: torch.Tensor, fixed: torch.Tensor | None, condition: Condition, suffix: Tokens, cache: KVCache
    ) -> torch.Tensor:
        """The velocity of the sample ``x [B, chunk, action]`` at one time."""
        raise NotImplementedError

    def schedule(self, steps: int) -> list[Condition]:
        """The condition of every step; computed once per number of steps when savings allow it."""
        if not self.savings.hoist_conditions:
            embedded = self._embedded_times(steps)
            return [self.condition(embedded[i : i + 1]) for i in range(steps)]
        if steps not in self._schedules:
            self._schedules[steps] = self._conditions(steps)
        return self._schedules[steps]

    def _conditions(self, steps: int) -> list[Condition]:
        table = self.condition(self._embedded_times(steps))
        return [tuple(rows[i : i + 1] for rows in table) for i in range(steps)]

    def _embedded_times(self, steps: int) -> torch.Tensor:
        embedded = embed_time(times(steps), self.config.expert.width, self.config.min_period, self.config.max_period)
        return embedded.to(device=self.device, dtype=self.precision.heads)

    def sample(
        self,
        noise: torch.Tensor,
        state: torch.Tensor,
        steps: int,
        suffix: Tokens,
        cache: KVCache,
        trace: Trace | None = None,
    ) -> torch.Tensor:
        """Actions ``[B, chunk, action]`` from ``noise`` of that shape, given a cache that holds the prefix."""
        x, fixed = noise.to(self.precision.heads), self.fixed(state)
        site = None if trace is not None else self.all_steps.site(steps)
        if site is None:
            return self.integrate(x, fixed, steps, suffix, cache, trace)
        return self.all_steps.run(site, x, fixed, suffix, cache)

    def integrate(
        self,
        noise: torch.Tensor,
        fixed: torch.Tensor | None,
        steps: int,
        suffix: Tokens,
        cache: KVCache,
        trace: Trace | None = None,
    ) -> torch.Tensor:
        """The same, step by step and layer by layer."""
        conditions = self.schedule(steps)

        def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
            return self.velocity(x, fixed, conditions[step], suffix, cache)

        return euler(noise, steps, velocity, trace)

    # All steps as one call

    @property
    def ends(self) -> Mapping[str, Linear]:
        """The products around the expert, of which :meth:`step_weights` makes weights."""
        return {"in": self.action_in_proj, "out": self.action_out_proj}

    def loop_sites(self) -> tuple[Site, ...]:
        """The call sites of a step that are not the expert's."""
        return tuple(linear.matmul.sites[0] for linear in self.ends.values())

    def step_weights(self, steps: int, ends: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """The weights of ``expert_steps`` that are no matrices of layers, given the weights of :attr:`ends`."""
        given = {f"{end}_{name}": ends[end][name] for end in ("in", "out") for name in ("weight", "bias")}
        return {**given, "modulation": self.modulation(steps)}

    def modulation(self, steps: int) -> torch.Tensor:
        """Scale, shift and gate of the expert's normalizations at every step: ``[steps, norms, 3 * width]``."""
        raise NotImplementedError
