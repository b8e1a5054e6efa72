"""Small models for the libraries to quantize, and checkpoints of them."""

import json
from pathlib import Path

import torch

N, K = 48, 64


class Small(torch.nn.Module):
    """Linear layers of a few shapes, called one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = torch.nn.Linear(K, 2 * K, bias=False)
        self.down_proj = torch.nn.Linear(2 * K, N, bias=True)
        self.head = torch.nn.Linear(N, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.down_proj(torch.relu(self.up_proj(x))))


def small(dtype: torch.dtype = torch.float32, seed: int = 0) -> Small:
    torch.manual_seed(seed)
    model = Small()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 3 * (torch.rand_like(parameter) < 0.02))
    return model.to(dtype)


def write_config(folder: Path, quantization: dict | None = None) -> None:
    body = {"model_type": "small"} | ({} if quantization is None else {"quantization_config": quantization})
    (folder / "config.json").write_text(json.dumps(body))


def inputs(rows: int = 5, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, K, generator=torch.Generator().manual_seed(seed))
