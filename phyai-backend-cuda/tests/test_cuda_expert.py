"""The persistent expert kernel against float64 torch, on a Hopper GPU."""

from __future__ import annotations

import pytest
import torch
from phyai_backend_cuda.expert.launch import Embedding, Expert
from phyai_backend_cuda.expert.weights import LayerWeights, modulation_tables

D, H, HD, FF, AD, EPS = 1024, 8, 256, 4096, 32, 1e-6

if not torch.cuda.is_available():
    WHY_NOT = "needs an NVIDIA GPU"
elif torch.cuda.get_device_capability() != (9, 0):
    WHY_NOT = "needs a Hopper GPU (sm90)"
else:
    WHY_NOT = ""
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "has one")]


def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device="cuda") * scale


class Case:
    """Random weights and caches of a short expert, and its mathematics in float64.

    As π0's it has a fixed row in front of the actions (``fixed``), and time among the tokens (``embed``)."""

    def __init__(
        self, queries: int, layers: int, steps: int, prefix: int, *, fixed: bool = False, embed: bool = False
    ) -> None:
        torch.manual_seed(prefix)
        self.queries, self.prefix, self.front = queries, prefix, int(fixed)
        self.fixed = normal(1, D) if fixed else None
        self.embedding = None
        if embed:
            self.embedding = Embedding(normal(steps, D), normal(D, D, scale=D**-0.5), normal(D, scale=0.1))
        self.layers = [
            LayerWeights(
                *(
                    normal(n, k, scale=k**-0.5).bfloat16()
                    for n, k in (((H + 2) * HD, D), (D, H * HD), (2 * FF, D), (D, FF))
                )
            )
            for _ in range(layers)
        ]
        self.attention, self.mlp, self.final = (
            normal(*shape, scale=0.3) for shape in ((steps, layers, 3 * D), (steps, layers, 3 * D), (steps, 3 * D))
        )
        self.in_w, self.in_b = normal(D, AD, scale=AD**-0.5), normal(D, scale=0.1)
        self.out_w, self.out_b = normal(AD, D, scale=D**-0.5).bfloat16(), normal(AD, scale=0.1)
        self.keys, self.values = ([normal(prefix, HD).bfloat16() for _ in range(layers)] for _ in range(2))
        self.dt = torch.full((steps,), -1.0 / steps, device="cuda")
        frequency = 10000.0 ** (-torch.arange(HD // 2, device="cuda") / (HD // 2))
        angle = torch.arange(2048, device="cuda")[:, None] * frequency
        self.cos_sin = torch.cat((angle.cos(), angle.sin()), -1).float()
        tables = modulation_tables(self.layers, self.attention, self.mlp, self.final, self.out_w, self.out_b)
        self.expert = Expert(
            self.layers, tables, in_weight=self.in_w, in_bias=self.in_b, out_weight=self.out_w, dt=self.dt,
            cos_sin=self.cos_sin, queries=queries, capacity=1088, eps=EPS,
            fixed=fixed, embedding=self.embedding,
        )  # fmt: skip
        self.expert.bind_cache(self.keys, self.values)

    def run(self, noise: torch.Tensor) -> torch.Tensor:
        self.expert.tensors["lengths"].copy_(torch.tensor([self.prefix, self.prefix]))
        self.expert.tensors["actions"].copy_(noise)
        if self.fixed is not None:
            self.expert.tensors["fixed"].copy_(self.fixed[0])
        self.expert.load_prefix()
        return self.expert.run().clone()

    def norm(self, x: torch.Tensor, modulation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale, shift, gate = modulation.double().chunk(3, -1)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (1 + scale) + shift, gate

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos_sin[self.prefix : self.prefix + len(x), None].double().chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def layer(self, x: torch.Tensor, step: int, i: int) -> torch.Tensor:
        weights = self.layers[i]
        y, gate = self.norm(x, self.attention[step, i])
        q, k, v = (y @ weights.qkv.double().T).split((H * HD, HD, HD), -1)
        q, k = self.rope(q.view(-1, H, HD)), self.rope(k.view(-1, 1, HD))[:, 0]
        keys, values = torch.cat((self.keys[i].double(), k)), torch.cat((self.values[i].double(), v))
        unseen = torch.zeros(len(x), len(keys), dtype=torch.bool, device=x.device)
        unseen[: self.front, self.prefix + self.front :] = True
        o = ((q.transpose(0, 1) @ keys.T) * HD**-0.5).masked_fill(unseen, -torch.inf).softmax(-1) @ values
        x = x + gate * (o.transpose(0, 1).reshape(len(x), -1) @ weights.o.double().T)
        y, gate = self.norm(x, self.mlp[step, i])
        g, u = (y @ weights.gate_up.double().T).chunk(2, -1)
        return x + gate * ((torch.nn.functional.gelu(g, approximate="tanh") * u) @ weights.down.double().T)

    def embedded(self, actions: torch.Tensor, step: int) -> torch.Tensor:
        x = actions @ self.in_w.double().T + self.in_b.double()
        if (e := self.embedding) is not None:
            x = torch.nn.functional.silu(x + e.time[step].double()) @ e.weight.double().T + e.bias.double()
        return x if self.fixed is None else torch.cat([self.fixed.double(), x])

    def want(self, noise: torch.Tensor) -> torch.Tensor:
        actions = noise.double()
        for step in range(len(self.dt)):
            x = self.embedded(actions, step)
            for i in range(len(self.layers)):
                x = self.layer(x, step, i)
            y, _ = self.norm(x[self.front :], self.final[step])
            actions = actions + self.dt[step].double() * (y @ self.out_w.double().T + self.out_b.double())
        return actions


@pytest.mark.parametrize(
    ("queries", "layers", "steps", "prefix"),
    [
        (50, 2, 2, 968),
        (50, 1, 1, 998),
        (50, 1, 1, 20),
        (10, 2, 2, 590),
        (10, 1, 1, 1030),
        (56, 1, 2, 64),
        (1, 1, 1, 300),
    ],
)
def test_actions(queries: int, layers: int, steps: int, prefix: int) -> None:
    case = Case(queries, layers, steps, prefix)
    noise = torch.randn(queries, AD, device="cuda")
    moved, want = case.run(noise).double() - noise, case.want(noise) - noise
    assert ((moved - want).norm() / want.norm()).item() < 5e-3
    assert torch.nn.functional.cosine_similarity(moved, want, dim=-1).min().item() > 0.9999


#: New keys in one tile, in some and in all, of which the fixed row sees the first key alone; two rounds of tiles.
@pytest.mark.parametrize(
    ("queries", "layers", "steps", "prefix"),
    [(50, 2, 3, 816), (50, 2, 2, 60), (50, 1, 3, 998), (10, 2, 2, 590), (55, 1, 2, 63), (1, 1, 2, 300)],
)
@pytest.mark.parametrize(("fixed", "embed"), [(True, True), (True, False), (False, True)])
def test_actions_behind_a_fixed_row_and_a_layer_that_takes_time(
    queries: int, layers: int, steps: int, prefix: int, fixed: bool, embed: bool
) -> None:
    case = Case(queries, layers, steps, prefix, fixed=fixed, embed=embed)
    noise = torch.randn(queries, AD, device="cuda")
    moved, want = case.run(noise).double() - noise, case.want(noise) - noise
    assert ((moved - want).norm() / want.norm()).item() < 8e-3  # one more product of bf16 than above
    assert torch.nn.functional.cosine_similarity(moved, want, dim=-1).min().item() > 0.9999


@pytest.mark.parametrize("prefix", [20, 60, 998])
def test_the_fixed_row_is_the_same_whatever_the_actions(prefix: int) -> None:
    case = Case(10, 2, 1, prefix, fixed=True, embed=True)
    rows = []
    for _ in range(2):
        case.run(torch.randn(10, AD, device="cuda"))
        words = case.expert.tensors["obuf"].view(-1, 4, 8, 8, 2, 4)  # k-step, row tile, row, pair, row + 8, bytes
        rows.append(words[:, 0, :, :, 0].transpose(0, 1).clone())
    assert [torch.equal(*row) for row in zip(*rows, strict=True)] == [True] + [False] * 7


@pytest.mark.parametrize("pi0", [False, True], ids=["pi05", "pi0"])
def test_the_same_bits_every_time(pi0: bool) -> None:
    case = Case(50, 3, 3, 700, fixed=pi0, embed=pi0)
    noise = torch.randn(50, AD, device="cuda")
    first = case.run(noise)
    assert all(torch.equal(case.run(noise), first) for _ in range(20))


def test_a_graph_replays_with_another_prefix() -> None:
    case = Case(50, 1, 1, 400)
    noise = torch.randn(50, AD, device="cuda")
    case.run(noise)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.expert.load_prefix()
        case.expert.run()
    for prefix in (400, 123):
        case.prefix = prefix
        case.keys, case.values = [k[:prefix] for k in case.keys], [v[:prefix] for v in case.values]
        case.expert.tensors["lengths"].copy_(torch.tensor([prefix, prefix]))
        case.expert.tensors["actions"].copy_(noise)
        graph.replay()
        moved, want = case.expert.tensors["actions"].double() - noise, case.want(noise) - noise
        assert ((moved - want).norm() / want.norm()).item() < 5e-3


def test_more_queries_than_the_kernel_takes() -> None:
    with pytest.raises(ValueError, match="1 to 56"):
        Case(57, 1, 1, 64)
    with pytest.raises(ValueError, match="1 to 55"):
        Case(56, 1, 1, 64, fixed=True)
