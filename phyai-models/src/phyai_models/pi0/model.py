"""π0: the state is a token of its own, and time is mixed into the action tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from phyai.dispatch import Site

from phyai_models.layers import Activation, KVCache, Linear, Scope, Tokens
from phyai_models.pi.config import PiConfig
from phyai_models.pi.expert import Expert
from phyai_models.pi.model import Condition, PiModel, Savings
from phyai_models.pi.precision import Precision


class PI0(PiModel):
    """The suffix has two segments: the state's token, which sees the prefix and itself, and the chunk's noisy
    actions, which see everything. (openpi, lerobot 0.6.1: ``PI0Pytorch``.)"""

    expert: Expert

    def __init__(
        self, scope: Scope, config: PiConfig, precision: Precision, savings: Savings, max_batch: int = 1
    ) -> None:
        super().__init__(scope, config, precision, savings, max_batch)
        width = config.expert.width
        self.state_proj = Linear(self.heads.at("state_proj"), config.max_state_dim, width, bias=True)
        self.action_time_mlp_in = Linear(self.heads.at("action_time_mlp_in"), 2 * width, width, bias=True)
        self.action_time_mlp_out = Linear(self.heads.at("action_time_mlp_out"), width, width, bias=True)
        self.silu = Activation(self.heads.at("action_time_mlp"), "silu", width)
        self.expert = Expert(self.expert_scope, config.expert, self.cos_sin)

    @staticmethod
    def suffix_segments(config: PiConfig) -> tuple[int, ...]:
        return (1, config.chunk_size)

    def fixed(self, state: torch.Tensor) -> torch.Tensor:
        """The state's token ``[B, 1, width]``."""
        return self.state_proj(state.to(self.precision.heads))[:, None]

    def condition(self, time: torch.Tensor) -> Condition:
        return (time,)

    def velocity(
        self, x: torch.Tensor, fixed: torch.Tensor | None, condition: Condition, suffix: Tokens, cache: KVCache
    ) -> torch.Tensor:
        assert fixed is not None
        actions = self.action_in_proj(x)
        actions = torch.cat([actions, condition[0].expand_as(actions)], dim=-1)
        actions = self.action_time_mlp_out(self.silu(self.action_time_mlp_in(actions)))
        embedded = torch.cat([fixed, actions], dim=1)
        hidden = self.expert(embedded.flatten(0, 1).to(self.precision.towers), suffix, cache)
        return self.action_out_proj(hidden.view_as(embedded)[:, 1:].to(x.dtype))

    # All steps as one call

    @property
    def ends(self) -> Mapping[str, Linear]:
        return {**super().ends, "mix": self.action_time_mlp_in, "embed": self.action_time_mlp_out}

    def loop_sites(self) -> tuple[Site, ...]:
        return (*super().loop_sites(), self.silu.site)

    def step_weights(self, steps: int, ends: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Actions and time enter one product side by side: what it makes of the time is a constant of each step, and
        its share of the actions and the projection in front of it are one matrix. Computed in float64."""
        width, heads = self.config.expert.width, self.precision.heads
        of_actions, of_time = ends["mix"]["weight"].double().split(width, dim=1)
        times = torch.cat([time for (time,) in self.schedule(steps)]).double()
        return {
            **super().step_weights(steps, ends),
            "in_weight": (of_actions @ ends["in"]["weight"].double()).to(heads),
            "in_bias": (of_actions @ ends["in"]["bias"].double() + ends["mix"]["bias"].double()).to(heads),
            "time": (times @ of_time.T).to(heads),
            **{f"embed_{name}": ends["embed"][name] for name in ("weight", "bias")},
        }

    def modulation(self, steps: int) -> torch.Tensor:
        return self.expert.modulation().repeat(steps, 1, 1)
