"""A request of the usual size, with made-up content: to warm up and to tune with."""

from __future__ import annotations

import torch

from phyai_models.pi.config import STATE
from phyai_models.pi.hosted import HostedPi, LerobotBatch
from phyai_models.pi.inputs import NOISE, TOKEN_MASK, TOKENS

#: Tokens of an instruction and, for π0.5, the state.
PROMPT = 64


def batch(model: HostedPi) -> LerobotBatch:
    """One request with every camera of the checkpoint. It brings its noise, so that the engine's generator stays."""
    config = model.config
    generator = torch.Generator().manual_seed(0)
    size, slots = config.vision.image_size, config.tokenizer_max_length
    tensors = {camera: torch.rand(1, 3, size, size, generator=generator) for camera in config.cameras}
    tensors[TOKENS] = torch.randint(1, 100, (1, slots), generator=generator)
    tensors[TOKEN_MASK] = torch.arange(slots)[None] < PROMPT
    tensors[STATE] = torch.zeros(1, config.state_dim)
    tensors[NOISE] = torch.randn(1, config.chunk_size, config.max_action_dim, generator=generator)
    return LerobotBatch(tensors)
