"""π0.5: the state is part of the prompt, and time enters the expert through adaptive normalization."""

from __future__ import annotations

from typing import Any

import torch
from phyai.dispatch import Chain, Site

from phyai_models.layers import Activation, KVCache, Linear, Scope, Tokens
from phyai_models.pi.config import PiConfig
from phyai_models.pi.expert import AdaExpert
from phyai_models.pi.flow import Trace
from phyai_models.pi.model import Condition, PiModel, Savings
from phyai_models.pi.precision import Precision
from phyai_models.weights import WeightSource


class PI05(PiModel):
    """The suffix is one segment, the chunk's noisy actions. (openpi, lerobot 0.6.1: ``PI05Pytorch``.)"""

    def __init__(
        self, scope: Scope, config: PiConfig, precision: Precision, savings: Savings, max_batch: int = 1
    ) -> None:
        super().__init__(scope, config, precision, savings, max_batch)
        width = config.expert.width
        self.time_mlp_in = Linear(self.heads.at("time_mlp_in"), width, width, bias=True)
        self.time_mlp_out = Linear(self.heads.at("time_mlp_out"), width, width, bias=True)
        self.silu = Activation(self.heads.at("time_mlp"), "silu", width)
        self.expert = AdaExpert(self.expert_scope, config.expert, self.cos_sin)
        self._steps: dict[int, Site | None] = {}

    @staticmethod
    def suffix_segments(config: PiConfig) -> tuple[int, ...]:
        return (config.chunk_size,)

    def condition(self, time: torch.Tensor) -> Condition:
        """Modulations of every normalization of the expert."""
        embedded = self.silu(self.time_mlp_out(self.silu(self.time_mlp_in(time))))
        return tuple(self.expert.modulate(embedded.to(self.precision.norms)))

    def velocity(
        self, x: torch.Tensor, fixed: torch.Tensor | None, condition: Condition, suffix: Tokens, cache: KVCache
    ) -> torch.Tensor:
        actions = self.action_in_proj(x).flatten(0, 1)
        hidden = self.expert(actions.to(self.precision.towers), condition, suffix, cache)
        return self.action_out_proj(hidden.to(x.dtype)).view_as(x)

    # All steps as one call, for kernels that keep them on the device

    def sample(
        self, noise: torch.Tensor, state: torch.Tensor, steps: int, suffix: Tokens, cache: KVCache,
        trace: Trace | None = None,
    ) -> torch.Tensor:  # fmt: skip
        site = None if trace is not None else self._site(steps)
        if site is None:
            return super().sample(noise, state, steps, suffix, cache, trace)
        x = noise.to(self.precision.heads)
        lengths = suffix.metadata["last_page_len"] - self.config.chunk_size
        y: torch.Tensor = site.run(x.flatten(0, 1), cache.k, cache.v, lengths, state=(noise, state, suffix, cache))
        return y.view_as(x)

    def refresh(self, source: WeightSource) -> None:
        super().refresh(source)
        for steps, site in self._steps.items():
            if site is not None:
                site.refresh({**site.weights, "modulation": self._modulation(steps)})

    def _site(self, steps: int) -> Site | None:
        """The call of ``expert_steps``, whose decomposition is this model's own loop over layers and steps."""
        if not self.savings.hoist_conditions:  # modulations are no weights then
            return None
        if steps not in self._steps:
            self._steps[steps] = self._bind(steps)
        return self._steps[steps]

    def _bind(self, steps: int) -> Site | None:
        matrices, scope = self.expert.matrices(), self.expert_scope
        ends = {"in": self.action_in_proj.matmul.sites[0], "out": self.action_out_proj.matmul.sites[0]}
        if matrices is None:
            return None

        def layers(x: Any, k: Any, v: Any, lengths: Any, out: Any = None, state: Any = None) -> torch.Tensor:
            noise, robot, suffix, cache = state
            y = super(PI05, self).sample(noise, robot, steps, suffix, cache).flatten(0, 1)
            return y if out is None else out.copy_(y)

        expert, towers, heads = self.config.expert, self.precision.towers, self.precision.heads
        chained = [s for s in self.dispatcher.sites if str(s.static.get("layer")).startswith(f"{scope.path}.")]
        return scope.bind(
            "expert_steps",
            weights={
                **matrices,
                **{f"{end}_{name}": site.weights[name] for end, site in ends.items() for name in ("weight", "bias")},
                "modulation": self._modulation(steps),
                "cos_sin": self.cos_sin,
            },
            attrs={"heads": expert.num_heads, "eps": expert.rms_norm_eps, "activation": "gelu_tanh"},
            dtypes={"x": heads, "y": heads, "k_cache": towers, "v_cache": towers, "lengths": torch.int32},
            dims={**scope.cache, "kv_heads": expert.num_kv_heads, "head_dim": expert.head_dim},
            chain=Chain(layers, (*chained, *ends.values())),
        )

    def _modulation(self, steps: int) -> torch.Tensor:
        """``[steps, norms, 3 * width]``."""
        return torch.stack([torch.cat(condition) for condition in self.schedule(steps)])
