"""All denoising steps of a π model as one call, for kernels that keep them on the device."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from phyai.dispatch import Chain, Site

from phyai_models.layers import KVCache, Linear, Tokens

if TYPE_CHECKING:
    from phyai_models.pi.model import PiModel


class AllSteps:
    """A model's calls of ``expert_steps``, one per number of steps. Their decomposition is the model's own loop over
    steps and layers."""

    def __init__(self, model: PiModel) -> None:
        # The model owns these calls. Were it held in turn, its weights would outlive it until a garbage collection.
        self._model: PiModel = weakref.proxy(model)
        self._sites: dict[int, Site | None] = {}

    def site(self, steps: int) -> Site | None:
        """The call for so many steps. None where its weights are no plain tensors: quantized ones, those in parts, and
        where savings have the conditions of the steps computed anew each time."""
        if steps not in self._sites:
            self._sites[steps] = self._bind(steps)
        return self._sites[steps]

    def run(
        self, site: Site, noise: torch.Tensor, fixed: torch.Tensor | None, suffix: Tokens, cache: KVCache
    ) -> torch.Tensor:
        """Actions from ``noise [B, chunk, action]``, with the ``fixed`` token ``[B, 1, width]`` in front."""
        segments = self._model.segments
        lengths = suffix.metadata["last_page_len"].view(-1, len(segments))[:, 0] - segments[0]
        token = None if fixed is None else fixed.flatten(0, 1)
        y: torch.Tensor = site.run(noise.flatten(0, 1), cache.k, cache.v, lengths, token, state=(suffix, cache))
        return y.view_as(noise)

    def refresh(self) -> None:
        """Take what the model's weights have become."""
        for steps, site in self._sites.items():
            if site is not None:
                site.refresh({**site.weights, **self._weights(steps)})

    def _weights(self, steps: int) -> dict[str, torch.Tensor]:
        """The weights that follow from those of other calls."""
        model = self._model
        ends = {name: linear.matmul.sites[0].weights for name, linear in model.ends.items()}
        return model.step_weights(steps, ends)

    def _bind(self, steps: int) -> Site | None:
        model, scope = self._model, self._model.expert_scope
        matrices = model.expert.matrices()
        if not model.savings.hoist_conditions or matrices is None or not all(map(_plain, model.ends.values())):
            return None
        expert, towers, heads = model.config.expert, model.precision.towers, model.precision.heads
        fixed = {} if len(model.segments) == 1 else {"fixed": heads}

        def loop(x: Any, k: Any, v: Any, lengths: Any, token: Any = None, out: Any = None, state: Any = None) -> Any:
            noise = x.view(len(lengths), -1, x.shape[-1])
            y = model.integrate(noise, None if token is None else token[:, None], steps, *state).flatten(0, 1)
            return y if out is None else out.copy_(y)

        layers = [s for s in model.dispatcher.sites if str(s.static.get("layer")).startswith(f"{scope.path}.")]
        return scope.bind(
            "expert_steps",
            weights={**matrices, **self._weights(steps), "cos_sin": model.cos_sin},
            attrs={"heads": expert.num_heads, "eps": expert.rms_norm_eps, "activation": "gelu_tanh"},
            dtypes={"x": heads, "y": heads, "k_cache": towers, "v_cache": towers, "lengths": torch.int32, **fixed},
            dims={**scope.cache, "kv_heads": expert.num_kv_heads, "head_dim": expert.head_dim},
            present=tuple(fixed),
            chain=Chain(loop, (*layers, *model.loop_sites())),
        )


def _plain(linear: Linear) -> bool:
    """Whether a product is one call with ordinary weights."""
    sites = linear.matmul.sites
    return len(sites) == 1 and isinstance(sites[0].weights["weight"], torch.Tensor)
