"""A model whose answers are known in closed form: each quantized layer turns its answer a known way."""

from pathlib import Path

import torch
from phyai.quant import plan_from_policy

#: By layer and bits: how far its quantization moves the answer, in a direction of its own.
OFFSETS = {("a", 4): 0.30, ("a", 8): 0.03, ("b", 4): 0.10, ("b", 8): 0.02, ("c", 4): 0.02, ("c", 8): 0.01}
LAYERS = ("a", "b", "c")


class FakeStudy:
    def __init__(self) -> None:
        self.paths = {name: f"fake.layers.0.{name}" for name in LAYERS}
        self.asked = 0

    def answers(self, policy, *, inputs=None, samples=8, watch=None):
        self.asked += 1
        plan = plan_from_policy(policy.quantization)
        answer = torch.zeros(samples, 4, dtype=torch.float64)
        answer[:, 0] = 1.0
        for i, name in enumerate(LAYERS):
            scheme = plan.scheme(self.paths[name])
            if scheme is not None:
                # sample 0 is moved the most
                answer[:, i + 1] = OFFSETS[name, scheme.weight.bits] / torch.arange(1, samples + 1)
        return answer


def study(directory, catalog):
    return FakeStudy() if (Path(directory) / "fake").exists() else None
