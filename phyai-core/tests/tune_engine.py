"""A model of one activation, for an engine to tune."""

from __future__ import annotations

from typing import Any

import attrs
from phyai.engine import Host


@attrs.frozen
class Args:
    checkpoint_dir: str = ""


class Acts:
    def __init__(self, host: Host) -> None:
        self.site = host.dispatcher.bind(
            "activation", role="expert", dtypes={"x": "fp32"}, dims={"D": 16}, attrs={"activation": "silu"}
        )

    def step(self, request: int) -> int:
        import torch

        return len(self.site.run(torch.zeros(request, 16)))

    def close(self) -> None:
        """Nothing is held."""


def load(args: Args, host: Host) -> Acts:
    return Acts(host)


def example(model: Any) -> int:
    return 64
