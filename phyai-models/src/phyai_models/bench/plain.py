"""π0 and π0.5 once more, in plain PyTorch: padded, masked, nothing left out.

Written from the published description (openpi; lerobot 0.6.1), with dense masks where the product packs tokens: the
baseline of ``phyai bench``, and an oracle of the tests. It never waits for a device, so a CUDA graph or
``torch.compile`` can take it whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F

from phyai_models.pi.config import PiConfig
from phyai_models.pi.flow import embed_time, times

LANGUAGE = "paligemma_with_expert.paligemma.model.language_model"
EXPERT = "paligemma_with_expert.gemma_expert.model"
VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model"
PROJECTOR = "paligemma_with_expert.paligemma.model.multi_modal_projector.linear"
MASKED = -2.3819763e38

KeysAndValues = list[tuple[torch.Tensor, torch.Tensor]]


class PlainPi:
    """A π model with the weights ``tensors`` by lerobot's names. Everything is computed in ``dtype``, norms and
    softmax at least in float32.

    ``sdpa``: attention by ``scaled_dot_product_attention`` in place of two products and a softmax.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], config: PiConfig, dtype: torch.dtype, *, sdpa: bool = False
    ) -> None:
        self.w = {name.removeprefix("model."): value.to(dtype) for name, value in tensors.items()}
        self.config, self.dtype, self.sdpa = config, dtype, sdpa
        self.wide = torch.promote_types(dtype, torch.float32)
        self.device = next(iter(self.w.values())).device

    # The parts

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def layer_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        eps = self.config.vision.layer_norm_eps
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], eps)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``[B, heads, S, head_dim]`` to ``[B, S, heads * head_dim]``."""
        if self.sdpa:
            o = F.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None])
        else:
            scores = (q @ k.transpose(-1, -2)).to(self.wide) / math.sqrt(q.shape[-1])
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None], MASKED)
            o = torch.softmax(scores, -1).to(self.dtype) @ v
        return o.transpose(1, 2).flatten(2)

    def image(self, images: torch.Tensor) -> torch.Tensor:
        """``[B, 3, S, S]`` in [-1, 1] to ``[B, patches, width]``."""
        vision, e = self.config.vision, f"{VISION}.embeddings.patch_embedding"
        x = F.conv2d(images.to(self.dtype), self.w[f"{e}.weight"], self.w[f"{e}.bias"], stride=vision.patch_size)
        x = x.flatten(2).transpose(1, 2) + self.w[f"{VISION}.embeddings.position_embedding.weight"]
        for i in range(vision.num_hidden_layers):
            p = f"{VISION}.encoder.layers.{i}"
            n = self.layer_norm(f"{p}.layer_norm1", x)
            q, k, v = (_heads(self.linear(f"{p}.self_attn.{s}_proj", n), vision.num_attention_heads) for s in "qkv")
            x = x + self.linear(f"{p}.self_attn.out_proj", self.attend(q, k, v))
            n = self.layer_norm(f"{p}.layer_norm2", x)
            x = x + self.linear(f"{p}.mlp.fc2", F.gelu(self.linear(f"{p}.mlp.fc1", n), approximate="tanh"))
        return self.linear(PROJECTOR, self.layer_norm(f"{VISION}.post_layernorm", x))

    def norm(
        self, name: str, x: torch.Tensor, condition: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The normalized x, and the gate of the branch where there is a condition."""
        wide = x.to(self.wide)
        n = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.expert.rms_norm_eps)
        if condition is None:
            return (n * (1 + self.w[f"{name}.weight"].to(self.wide))).to(self.dtype), None
        scale, shift, gate = self.linear(f"{name}.dense", condition)[:, None].chunk(3, -1)
        return (n * (1 + scale.to(self.wide)) + shift.to(self.wide)).to(self.dtype), gate

    def rope(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        d = x.shape[-1]
        exponent = torch.arange(0, d, 2, device=x.device, dtype=self.wide) / d
        angle = positions[..., None].to(self.wide) * self.config.expert.rope_theta**-exponent
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x.to(self.wide).chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(self.dtype)

    def tower(
        self, p: str, x: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, past: KeysAndValues | None,
        condition: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, KeysAndValues]:  # fmt: skip
        """Gemma over ``x [B, S, width]``; ``mask [B, S, keys]`` keeps where True; past keys and values come first."""
        sizes = self.config.language_model
        kept = []
        for i in range(sizes.depth):
            layer = f"{p}.layers.{i}"
            n, gate = self.norm(f"{layer}.input_layernorm", x, condition)
            q, k, v = (_heads(self.linear(f"{layer}.self_attn.{s}_proj", n), -1, sizes.head_dim) for s in "qkv")
            q, k = self.rope(q, positions), self.rope(k, positions)
            kept.append((k, v))
            if past is not None:
                k, v = torch.cat([past[i][0], k], 2), torch.cat([past[i][1], v], 2)
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
            x = _gated(x, self.linear(f"{layer}.self_attn.o_proj", self.attend(q, k, v, mask)), gate)
            n, gate = self.norm(f"{layer}.post_attention_layernorm", x, condition)
            m = F.gelu(self.linear(f"{layer}.mlp.gate_proj", n), approximate="tanh")
            x = _gated(x, self.linear(f"{layer}.mlp.down_proj", m * self.linear(f"{layer}.mlp.up_proj", n)), gate)
        return self.norm(f"{p}.norm", x, condition)[0], kept

    # The whole

    def suffix(
        self, x: torch.Tensor, state: torch.Tensor, time: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Tokens, condition, and which block each token belongs to. ``time`` is embedded already: ``[width]``."""
        e = time.to(self.dtype).expand(x.shape[0], -1)
        actions = self.linear("action_in_proj", x)
        if self.config.family == "pi05":
            condition = F.silu(self.linear("time_mlp_out", F.silu(self.linear("time_mlp_in", e))))
            return actions, condition, torch.zeros(actions.shape[1], dtype=torch.long, device=x.device)
        joined = torch.cat([actions, e[:, None].expand_as(actions)], -1)
        actions = self.linear("action_time_mlp_out", F.silu(self.linear("action_time_mlp_in", joined)))
        state = F.pad(state, (0, self.config.max_state_dim - state.shape[1])).to(self.dtype)
        tokens = torch.cat([self.linear("state_proj", state)[:, None], actions], 1)
        block = (torch.arange(tokens.shape[1], device=x.device) > 0).long()
        return tokens, None, block

    def embedded_times(self, steps: int) -> torch.Tensor:
        """The embedded times of the steps ``[steps, width]``, on the device."""
        config = self.config
        embedded = embed_time(times(steps), config.expert.width, config.min_period, config.max_period)
        return embedded.to(self.device)

    def __call__(
        self, images: torch.Tensor, camera_mask: torch.Tensor, tokens: torch.Tensor, token_mask: torch.Tensor,
        state: torch.Tensor, noise: torch.Tensor, time: torch.Tensor, stages: dict[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Actions ``[B, chunk, max_action_dim]``.

        ``images`` ``[B, C, 3, S, S]`` in [-1, 1], masks as in :class:`phyai_models.pi.inputs.Inputs`, ``time`` from
        :meth:`embedded_times`. ``stages`` receives what every stage computed.
        """
        batch = tokens.shape[0]
        kept: dict[str, torch.Tensor] = {} if stages is None else stages
        embeds = self.image(images.flatten(0, 1))
        embeds = embeds.view(*images.shape[:2], *embeds.shape[1:])
        for c, each in enumerate(embeds.unbind(1) if stages is not None else ()):
            kept[f"vision.cam{c}"] = each
        table = self.w.get(
            f"{LANGUAGE}.embed_tokens.weight", self.w.get("paligemma_with_expert.paligemma.lm_head.weight")
        )
        assert table is not None
        words = table[tokens] * math.sqrt(table.shape[1])
        prefix = torch.cat([embeds.flatten(1, 2), words], 1)
        mask = torch.cat([camera_mask.repeat_interleave(embeds.shape[2], 1), token_mask], 1)
        kept |= {"prefix.embeds": prefix, "prefix.pad_mask": mask}
        positions = mask.long().cumsum(1) - 1
        sees = mask[:, None].expand(batch, prefix.shape[1], -1)  # masked rows too: nobody reads what they give
        _, past = self.tower(LANGUAGE, prefix, sees, positions, None)
        x, steps = noise.to(self.wide), len(time)
        for step in range(steps):
            suffix, condition, block = self.suffix(x.to(self.dtype), state, time[step])
            length = suffix.shape[1]
            sees = (block[None, :] <= block[:, None]).expand(batch, length, length)
            full = torch.cat([mask[:, None].expand(batch, length, -1), sees], 2)
            positions = mask.sum(1, keepdim=True) + torch.arange(length, device=mask.device)
            hidden, _ = self.tower(EXPERT, suffix, full, positions, past, condition)
            v = self.linear("action_out_proj", hidden[:, -self.config.chunk_size :]).to(self.wide)
            if stages is not None:
                kept |= {f"step{step:02d}.x": x, f"step{step:02d}.v": v}
            x = x - v / steps
        return x


def _heads(x: torch.Tensor, heads: int, head_dim: int = -1) -> torch.Tensor:
    """``[B, S, heads * head_dim]`` to ``[B, heads, S, head_dim]``."""
    return x.view(*x.shape[:-1], heads, head_dim).transpose(1, 2)


def _gated(residual: torch.Tensor, x: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    return residual + (x if gate is None else gate * x)
