"""π0 and π0.5 once more, in plain PyTorch: padded, masked, nothing left out. An oracle for the tests.

Written from the published description alone (openpi; lerobot 0.6.1), with dense masks where the product packs
tokens; it is held to the handed cases itself. All arithmetic is in ``dtype``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

LANGUAGE = "paligemma_with_expert.paligemma.model.language_model"
EXPERT = "paligemma_with_expert.gemma_expert.model"
VISION = "paligemma_with_expert.paligemma.model.vision_tower.vision_model"
PROJECTOR = "paligemma_with_expert.paligemma.model.multi_modal_projector.linear"


class PlainPi:
    def __init__(
        self, tensors: dict[str, torch.Tensor], config: dict[str, Any], arch: dict[str, Any], dtype: torch.dtype
    ) -> None:
        self.w = {name.removeprefix("model."): value.to(dtype) for name, value in tensors.items()}
        self.config, self.arch, self.dtype = config, arch, dtype

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def layer_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], 1e-6)

    def image(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, S, S] in [-1, 1] to [B, P, width]."""
        heads = self.arch["vision"]["num_attention_heads"]
        e = f"{VISION}.embeddings"
        x = F.conv2d(
            images, self.w[f"{e}.patch_embedding.weight"], self.w[f"{e}.patch_embedding.bias"],
            stride=self.arch["vision"]["patch_size"],
        )  # fmt: skip
        x = x.flatten(2).transpose(1, 2) + self.w[f"{e}.position_embedding.weight"]
        for i in range(self.arch["vision"]["num_hidden_layers"]):
            p = f"{VISION}.encoder.layers.{i}"
            n = self.layer_norm(f"{p}.layer_norm1", x)
            q, k, v = (
                self.linear(f"{p}.self_attn.{s}_proj", n).unflatten(-1, (heads, -1)).transpose(1, 2) for s in "qkv"
            )
            a = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v
            x = x + self.linear(f"{p}.self_attn.out_proj", a.transpose(1, 2).flatten(2))
            n = self.layer_norm(f"{p}.layer_norm2", x)
            x = x + self.linear(f"{p}.mlp.fc2", F.gelu(self.linear(f"{p}.mlp.fc1", n), approximate="tanh"))
        return self.linear(PROJECTOR, self.layer_norm(f"{VISION}.post_layernorm", x))

    def norm(self, name: str, x: torch.Tensor, condition: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        if condition is None:
            return n * (1 + self.w[f"{name}.weight"]), torch.ones_like(n)
        scale, shift, gate = self.linear(f"{name}.dense", condition)[:, None].chunk(3, -1)
        return n * (1 + scale) + shift, gate

    def rope(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        d = x.shape[-1]
        angle = positions[..., None].to(self.dtype) * 10_000.0 ** -(torch.arange(0, d, 2).to(self.dtype) / d)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def tower(
        self,
        p: str,
        x: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        past: list[Any] | None,
        condition: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, list[Any]]:
        """Gemma over x [B, S, width]; mask [B, S, keys] bool; past keys and values come first."""
        sizes = self.arch["language_model"]
        kept = []
        for i in range(sizes["depth"]):
            layer = f"{p}.layers.{i}"
            n, gate = self.norm(f"{layer}.input_layernorm", x, condition)
            q, k, v = (
                self.linear(f"{layer}.self_attn.{s}_proj", n).unflatten(-1, (-1, sizes["head_dim"])).transpose(1, 2)
                for s in "qkv"
            )
            q, k = self.rope(q, positions), self.rope(k, positions)
            kept.append((k, v))
            if past is not None:
                k, v = torch.cat([past[i][0], k], 2), torch.cat([past[i][1], v], 2)
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            scores = scores + torch.where(mask, 0.0, -2.3819763e38).to(self.dtype)[:, None]
            a = (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
            x = x + gate * self.linear(f"{layer}.self_attn.o_proj", a)
            n, gate = self.norm(f"{layer}.post_attention_layernorm", x, condition)
            m = F.gelu(self.linear(f"{layer}.mlp.gate_proj", n), approximate="tanh") * self.linear(
                f"{layer}.mlp.up_proj", n
            )
            x = x + gate * self.linear(f"{layer}.mlp.down_proj", m)
        return self.norm(f"{p}.norm", x, condition)[0], kept

    def suffix(
        self, x: torch.Tensor, state: torch.Tensor, t: float
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Tokens, condition, and which block each token belongs to."""
        width = self.arch["expert"]["width"]
        time = torch.tensor(t, dtype=torch.float32).double()
        low, high = self.config.get("min_period", 4e-3), self.config.get("max_period", 4.0)
        period = low * (high / low) ** torch.linspace(0, 1, width // 2, dtype=torch.float64)
        e = torch.cat([torch.sin(2 * math.pi * time / period), torch.cos(2 * math.pi * time / period)]).to(self.dtype)
        e = e.expand(x.shape[0], width)
        actions = self.linear("action_in_proj", x)
        if self.arch["family"] == "pi05":
            condition = F.silu(self.linear("time_mlp_out", F.silu(self.linear("time_mlp_in", e))))
            return actions, condition, torch.zeros(actions.shape[1], dtype=torch.long)
        joined = torch.cat([actions, e[:, None].expand_as(actions)], -1)
        actions = self.linear("action_time_mlp_out", F.silu(self.linear("action_time_mlp_in", joined)))
        state = F.pad(state, (0, self.config["max_state_dim"] - state.shape[1])).to(self.dtype)
        tokens = torch.cat([self.linear("state_proj", state)[:, None], actions], 1)
        return tokens, None, torch.tensor([0] + [1] * actions.shape[1])

    def __call__(
        self,
        images: list[torch.Tensor | None],
        tokens: torch.Tensor,
        token_mask: torch.Tensor,
        state: torch.Tensor,
        noise: torch.Tensor,
        steps: int,
    ) -> dict[str, torch.Tensor]:
        """``images`` in [0, 1] at the model's size, None for a missing camera (those come last)."""
        batch = tokens.shape[0]
        stages: dict[str, torch.Tensor] = {}
        embeds, seen = [], []
        blank = torch.zeros_like(next(i for i in images if i is not None))
        for c, image in enumerate(images):
            stages[f"vision.cam{c}"] = self.image(((blank if image is None else image) * 2 - 1).to(self.dtype))
            embeds.append(stages[f"vision.cam{c}"])
            seen.append(torch.full((batch, embeds[-1].shape[1]), image is not None))
        table = self.w.get(
            f"{LANGUAGE}.embed_tokens.weight", self.w.get("paligemma_with_expert.paligemma.lm_head.weight")
        )
        embeds.append(table[tokens] * math.sqrt(table.shape[1]))
        prefix, mask = torch.cat(embeds, 1), torch.cat([*seen, token_mask], 1)
        stages["prefix.embeds"], stages["prefix.pad_mask"] = prefix, mask
        positions = mask.long().cumsum(1) - 1
        _, past = self.tower(LANGUAGE, prefix, mask[:, None] & mask[:, :, None], positions, None)
        x = noise.to(self.dtype)
        for step in range(steps):
            suffix, condition, block = self.suffix(x, state, 1.0 - step / steps)
            length = suffix.shape[1]
            sees = (block[None, :] <= block[:, None]).expand(batch, length, length)
            full = torch.cat([mask[:, None].expand(batch, length, -1), sees], 2)
            positions = mask.sum(1, keepdim=True) + torch.arange(length)
            hidden, _ = self.tower(EXPERT, suffix, full, positions, past, condition)
            v = self.linear("action_out_proj", hidden[:, -self.config["chunk_size"] :])
            stages[f"step{step:02d}.x"], stages[f"step{step:02d}.v"] = x, v
            x = x - v / steps
        stages["actions"] = x[..., : self.config["output_features"]["action"]["shape"][0]]
        return stages
