"""π0.5: the state is part of the prompt, and time enters the expert through adaptive normalization."""

from __future__ import annotations

import torch

from phyai_models.layers import Activation, KVCache, Linear, Scope, Tokens
from phyai_models.pi.config import PiConfig
from phyai_models.pi.expert import AdaExpert
from phyai_models.pi.model import Condition, PiModel, Savings
from phyai_models.pi.precision import Precision


class PI05(PiModel):
    """The suffix is one segment, the chunk's noisy actions. (openpi, lerobot 0.6.1: ``PI05Pytorch``.)"""

    expert: AdaExpert

    def __init__(
        self, scope: Scope, config: PiConfig, precision: Precision, savings: Savings, max_batch: int = 1
    ) -> None:
        super().__init__(scope, config, precision, savings, max_batch)
        width = config.expert.width
        self.time_mlp_in = Linear(self.heads.at("time_mlp_in"), width, width, bias=True)
        self.time_mlp_out = Linear(self.heads.at("time_mlp_out"), width, width, bias=True)
        self.silu = Activation(self.heads.at("time_mlp"), "silu", width)
        self.expert = AdaExpert(self.expert_scope, config.expert, self.cos_sin)

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

    def modulation(self, steps: int) -> torch.Tensor:
        return torch.stack([torch.cat(condition) for condition in self.schedule(steps)])
