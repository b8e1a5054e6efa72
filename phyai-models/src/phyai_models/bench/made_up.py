"""Requests with made-up content, whose sizes are what matters."""

from __future__ import annotations

import torch

from phyai_models.pi.config import STATE, PiConfig
from phyai_models.pi.inputs import NOISE, TOKEN_MASK, TOKENS, Inputs
from phyai_models.pi.requests import LerobotBatch


def random_inputs(config: PiConfig, generator: torch.Generator, *, batch: int, cameras: int, prompt: int) -> Inputs:
    """``batch`` requests with ``cameras`` images and ``prompt`` tokens each, all of them valid."""
    size = config.vision.image_size
    return Inputs(
        images=torch.rand(batch, cameras, 3, size, size, generator=generator) * 2 - 1,
        camera_mask=torch.ones(batch, cameras, dtype=torch.bool),
        tokens=torch.randint(0, config.vocab_size, (batch, prompt), generator=generator),
        token_mask=torch.ones(batch, prompt, dtype=torch.bool),
        state=torch.rand(batch, config.max_state_dim, generator=generator) * 2 - 1,
        noise=torch.randn(batch, config.chunk_size, config.max_action_dim, generator=generator),
    )


def in_lerobots_names(inputs: Inputs, config: PiConfig, steps: int, *, bytes_: bool = False) -> LerobotBatch:
    """``inputs``, with all their cameras there, as a caller of :meth:`phyai.engine.Engine.step` brings them: images in
    [0, 1], or with ``bytes_`` the nearest of uint8, on the host, in lerobot's names."""
    cameras = zip(config.cameras, inputs.images.unbind(1), strict=False)
    tensors = {name: (images + 1) / 2 for name, images in cameras}
    if bytes_:
        tensors = {name: (images * 255).round().to(torch.uint8) for name, images in tensors.items()}
    rest = {TOKENS: inputs.tokens, TOKEN_MASK: inputs.token_mask, STATE: inputs.state, NOISE: inputs.noise}
    return LerobotBatch({**tensors, **rest}, num_steps=steps)
