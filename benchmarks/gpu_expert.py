"""The expert of π0.5 or π0 as one persistent kernel: right against float32 torch, and timed beside torch's own kernels.

    python benchmarks/gpu_expert.py --out benchmarks/results/expert.json [--model pi0] [--check] [--baseline]
        [--variant ""] [--variant SLOTS=12] [--variant QUERIES_PAUSE=0] [--variant TRACE=400]

Random weights at real size: 18 layers, 1024 wide, 10 steps; BF16. π0.5: 50 rows over 968 + 50 keys. π0: 51 rows over
816 + 51 keys, the first row fixed and blind to the others; norms without modulation, time among the tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_parts import command_of
from phyai_backend_cuda.expert.launch import ROWS, TILE, Embedding, Expert
from phyai_backend_cuda.expert.tiles import unpack_tiles
from phyai_backend_cuda.expert.weights import LayerWeights, attention_order, modulation_tables, qkv_order

#: What each of the kernel's marks ends, in order, per layer (``-DTRACE=n``).
MARKS = (
    "A wait", "A product", "A write", "B scores", "B softmax", "B values", "B write parts", "B combine",
    "C wait", "C product", "C write parts", "C reduce", "D wait", "D product", "D write",
    "E wait", "E product", "E write parts", "E reduce",
)  # fmt: skip
#: Queries, layers, steps, prefix: two tiles of keys to more than a round of them, new keys in all tiles or in some.
CASES = ((50, 1, 1, 968), (50, 2, 2, 600), (10, 2, 2, 590), (50, 2, 2, 20), (50, 2, 1, 998), (50, 2, 3, 60),
         (10, 2, 2, 1030), (50, 2, 2, 1030), (50, 18, 10, 968))  # fmt: skip
PREFIX = {"pi05": 968, "pi0": 816}
D, H, HD, FF, AD, EPS = 1024, 8, 256, 4096, 32, 1e-6


class Model:
    """Random weights, tables and caches, and the expert's mathematics in float32. ``pi0``: as π0's expert has them."""

    def __init__(self, queries: int, layers: int, steps: int, prefix: int, *, pi0: bool = False) -> None:
        def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return torch.randn(*shape, device="cuda") * scale

        self.queries, self.steps, self.prefix = queries, steps, prefix
        self.front = int(pi0)
        self.m = queries + self.front
        self.layers = [
            LayerWeights(
                normal((H + 2) * HD, D, scale=D**-0.5).bfloat16(), normal(D, H * HD, scale=(H * HD) ** -0.5).bfloat16(),
                normal(2 * FF, D, scale=D**-0.5).bfloat16(), normal(D, FF, scale=FF**-0.5).bfloat16(),
            )
            for _ in range(layers)
        ]  # fmt: skip
        self.attention, self.mlp = normal(steps, layers, 3 * D, scale=0.3), normal(steps, layers, 3 * D, scale=0.3)
        self.final = normal(steps, 3 * D, scale=0.3)
        self.fixed, self.embedding = None, None
        if pi0:
            for table in (self.attention, self.mlp, self.final):
                table[1:] = table[:1].clone()
                table[..., D:] = torch.tensor([0.0, 1.0], device="cuda").repeat_interleave(D)
            self.fixed = normal(1, D)
            self.embedding = Embedding(normal(steps, D), normal(D, D, scale=D**-0.5), normal(D, scale=0.1))
        self.in_w, self.in_b = normal(D, AD, scale=AD**-0.5), normal(D, scale=0.1)
        self.out_w, self.out_b = normal(AD, D, scale=D**-0.5).bfloat16(), normal(AD, scale=0.1)
        self.keys = [normal(prefix, HD).bfloat16() for _ in range(layers)]
        self.values = [normal(prefix, HD).bfloat16() for _ in range(layers)]
        self.dt = torch.full((steps,), -1.0 / steps, device="cuda")
        angle = torch.arange(2048, device="cuda").float()[:, None] * 10000.0 ** (
            -torch.arange(HD // 2, device="cuda").float() / (HD // 2)
        )
        self.cos_sin = torch.cat((angle.cos(), angle.sin()), -1)

    def norm(self, x: torch.Tensor, modulation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale, shift, gate = modulation.chunk(3, -1)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * (1 + scale) + shift, gate

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.cos_sin[self.prefix : self.prefix + self.m, None].chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def layer(self, x: torch.Tensor, step: int, i: int, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        w = self.layers[i]
        y, gate = self.norm(x, self.attention[step, i])
        q, k, v = (y @ w.qkv.float().T).split((H * HD, HD, HD), -1)
        q, k = self.rope(q.view(self.m, H, HD)), self.rope(k.view(self.m, 1, HD))[:, 0]
        keys, values = torch.cat((self.keys[i].float(), k)), torch.cat((self.values[i].float(), v))
        unseen = torch.zeros(self.m, len(keys), dtype=torch.bool, device="cuda")
        unseen[: self.front, self.prefix + self.front :] = True
        o = ((q.transpose(0, 1) @ keys.T) * HD**-0.5).masked_fill(unseen, -torch.inf).softmax(-1) @ values
        o = o.transpose(0, 1).reshape(self.m, -1)
        x = x + gate * (o @ w.o.float().T)
        y2, gate = self.norm(x, self.mlp[step, i])
        g, u = (y2 @ w.gate_up.float().T).chunk(2, -1)
        act = torch.nn.functional.gelu(g, approximate="tanh") * u
        seen.update(q=q, k=k, v=v, o=o, x_mid=x, act=act)
        x = x + gate * (act @ w.down.float().T)
        seen["x"] = x
        return x

    def reference(self, actions: torch.Tensor, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        a = actions.clone()
        for step in range(self.steps):
            x = a @ self.in_w.T + self.in_b
            if self.embedding is not None:
                seen["z"] = torch.nn.functional.silu(x + self.embedding.time[step])
                x = seen["z"] @ self.embedding.weight.T + self.embedding.bias
            x = x if self.fixed is None else torch.cat((self.fixed, x))
            for i in range(len(self.layers)):
                x = self.layer(x, step, i, seen)
            y, _ = self.norm(x[self.front :], self.final[step])
            a = a + self.dt[step] * (y @ self.out_w.float().T + self.out_b)
        return a

    def expert(self, defines: dict[str, int]) -> Expert:
        tables = modulation_tables(self.layers, self.attention, self.mlp, self.final, self.out_w, self.out_b)
        expert = Expert(
            self.layers, tables, in_weight=self.in_w, in_bias=self.in_b, out_weight=self.out_w, dt=self.dt,
            cos_sin=self.cos_sin, queries=self.queries, capacity=1088, eps=EPS, fixed=bool(self.front),
            embedding=self.embedding, defines=defines,
        )  # fmt: skip
        if self.fixed is not None:
            expert.tensors["fixed"].copy_(self.fixed[0])
        expert.tensors["lengths"].copy_(torch.tensor([self.prefix, self.prefix]))
        expert.bind_cache(self.keys, self.values)
        return expert

    def torch_step(self, x: torch.Tensor, step: int, caches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """The same in bf16 by torch's kernels: cuBLAS, SDPA flash, eager element-wise."""
        F = torch.nn.functional
        for i, w in enumerate(self.layers):
            y, gate = self.norm(x, self.attention_bf16[step, i])
            q, k, v = (y @ w.qkv.T).split((H * HD, HD, HD), -1)
            q, k = self.rope(q.view(self.m, H, HD)).bfloat16(), self.rope(k.view(self.m, 1, HD)).bfloat16()
            keys, values = caches[i]
            keys[self.prefix :].copy_(k[:, 0])
            values[self.prefix :].copy_(v)
            q = q.transpose(0, 1).reshape(1, 1, H * self.m, HD)  # one KV head: heads are more queries
            o = F.scaled_dot_product_attention(q, keys[None, None], values[None, None])
            o = o.view(H, self.m, HD).transpose(0, 1).reshape(self.m, -1)
            x = x + gate * (o @ w.o.T)
            y, gate = self.norm(x, self.mlp_bf16[step, i])
            g, u = (y @ w.gate_up.T).chunk(2, -1)
            x = x + gate * ((F.gelu(g, approximate="tanh") * u) @ w.down.T)
        return x


def timed(graph: torch.cuda.CUDAGraph, n: int = 30, before: Any = None) -> dict[str, float]:
    times = []
    for _ in range(n + 5):
        if before is not None:
            before()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    times = sorted(times[5:])
    return {"ms": times[len(times) // 2], "ms_p10": times[len(times) // 10], "ms_p90": times[len(times) * 9 // 10]}


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.float() - want).norm() / want.norm()).item()


def prefix_rows(prefix: int, rows: int) -> torch.Tensor:
    """Where the prefix's keys lie among the rows of all tiles: tile t leaves room for the new keys t, t + tiles, ..."""
    tiles = -(-(prefix + rows) // 64)
    room = [64 - len(range(t, rows, tiles)) for t in range(tiles)]
    return torch.cat([t * 64 + torch.arange(n) for t, n in enumerate(room)])[:prefix]


def stages(model: Model, expert: Expert, seen: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative error of every intermediate of the last layer run, read back from the kernel's scratch."""
    m, t, device = model.m, expert.tensors, expert.tensors["act"].device
    last, layers = len(model.layers) - 1, len(model.layers)
    use = model.steps * layers - 1  # the last one: which copy it is in

    def fragments(name: str, use: int) -> torch.Tensor:
        pairs = t[name].view(2, -1)[use & 1].view(torch.bfloat16).view(-1, 4, 8, 8, 2, 2)
        return pairs.permute(1, 4, 2, 0, 3, 5).reshape(64, -1)[:m]

    def cache(name: str, chunks: list[int]) -> torch.Tensor:
        tiles = t[name][last].view(torch.bfloat16).view(-1, 4, 64, 64)[:, chunks]
        return unpack_tiles(tiles)[prefix_rows(model.prefix, m).to(device)]

    order = qkv_order(device)[:HD]
    fresh = t["fresh"].view(2, 2, ROWS, 2 * HD)[use & 1].view(torch.bfloat16)
    queries = t["qbuf"].view(2, H * 4 * TILE)[use & 1].view(torch.bfloat16).view(-1, 4, 8, 4, 2, 2, 2)
    queries = queries.permute(1, 5, 2, 0, 4, 3, 6).reshape(64, H, HD)[:m]  # in the tensor core's order
    before = {} if model.embedding is None else {
        "z": error(fragments("zs", model.steps - 1)[model.front :], seen["z"])
    }  # fmt: skip
    return before | {
        "q": error(queries, seen["q"][..., order]), "k": error(fresh[0, :m], seen["k"][..., order]),
        "v": error(fresh[1, :m], seen["v"]),
        "k_prefix": error(cache("kbuf", [0, 1, 2, 3]), model.keys[last].float()[..., order]),
        "v_prefix": error(cache("vbuf", [0, 2, 1, 3]), model.values[last].float()),
        "o": error(fragments("obuf", use), seen["o"][:, attention_order(device)]),
        "xs2": error(fragments("xs2", use), seen["x_mid"] * (1 + model.mlp[-1, last, :D])),
        "act": error(fragments("act", use), seen["act"]),
        "xf": error(fragments("xf", model.steps - 1), seen["x"] * (1 + model.final[-1, :D])),
    }  # fmt: skip


def check(queries: int, layers: int, steps: int, prefix: int, pi0: bool, defines: dict[str, int]) -> dict[str, Any]:
    torch.manual_seed(queries + layers)
    model = Model(queries, layers, steps, prefix, pi0=pi0)
    expert = model.expert(defines)
    noise = torch.randn(queries, AD, device="cuda")
    expert.tensors["actions"].copy_(noise)
    expert.load_prefix()
    got = expert.run().clone()
    torch.cuda.synchronize()
    seen: dict[str, torch.Tensor] = {}
    want = model.reference(noise, seen)
    expert.tensors["actions"].copy_(noise)
    again = expert.run().clone()
    cosine = torch.nn.functional.cosine_similarity(got, want, dim=-1).min().item()
    return {
        "queries": queries, "layers": layers, "steps": steps, "prefix": prefix,
        "actions": error(got - noise, want - noise), "worst_row_cosine": cosine,
        "bitwise_same_twice": torch.equal(got, again),
        "stages": stages(model, expert, seen),
    }  # fmt: skip


def time_variant(model: Model, defines: dict[str, int]) -> dict[str, Any]:
    expert = model.expert(defines)
    noise = torch.randn(50, AD, device="cuda")
    expert.load_prefix()
    expert.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        expert.load_prefix()
        expert.run()
    result: dict[str, Any] = {"defines": defines, **timed(graph, before=lambda: expert.tensors["actions"].copy_(noise))}
    expert.tensors["actions"].copy_(noise)
    graph.replay()
    want = model.reference(noise, {})
    result["actions_error"] = error(expert.tensors["actions"] - noise, want - noise)
    if defines.get("TRACE"):
        embedding = 0 if model.embedding is None else 2  # marks of the product in front of the first layer
        marks = expert.tensors["trace"].flatten()[: 128 * defines["TRACE"]].view(128, -1)[:, embedding:]
        whole = min((marks.shape[1] - 1) // len(MARKS), len(model.layers)) * len(MARKS)  # of the first step
        spans = (marks[:, 1:] - marks[:, :-1]).double()[:, len(MARKS) - 1 : whole - 1]  # the first ends "A wait"
        spans = spans.view(128, -1, len(MARKS)).mean(1)  # the first layer left out
        result["cycles_mean_max"] = {
            name: [int(spans[:, i].mean()), int(spans[:, i].max())] for i, name in enumerate(MARKS)
        }
        result["cycles_per_layer"] = int(spans.sum(1).mean())
    return result


def time_torch(model: Model) -> dict[str, float]:
    """The same ten steps by torch's kernels in one graph."""
    model.attention_bf16, model.mlp_bf16 = model.attention.bfloat16(), model.mlp.bfloat16()
    pad = torch.zeros(50, HD, device="cuda", dtype=torch.bfloat16)
    caches = [(torch.cat((k, pad)), torch.cat((v, pad))) for k, v in zip(model.keys, model.values, strict=True)]
    x = torch.randn(50, D, device="cuda", dtype=torch.bfloat16)
    model.torch_step(x, 0, caches)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for step in range(10):
            x = model.torch_step(x, step, caches)
    return timed(graph)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", choices=tuple(PREFIX), default="pi05")
    parser.add_argument("--variant", action="append", default=[], help="NAME=VALUE[,NAME=VALUE]: macros to time with")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--baseline", action="store_true")
    arguments = parser.parse_args()
    pi0, prefix = arguments.model == "pi0", PREFIX[arguments.model]
    if pi0 and arguments.baseline:
        parser.error("--baseline has π0.5's expert only")
    report: dict[str, Any] = {
        "command": command_of(sys.argv), "model": arguments.model, "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }  # fmt: skip

    def record(key: str, value: Any) -> None:
        report.setdefault(key, []).append(value)
        print(key, json.dumps(value), flush=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")

    with torch.no_grad():
        if arguments.check:
            for case in CASES:
                record("checks", check(*case, pi0, {}))
        torch.manual_seed(0)
        model = Model(50, 18, 10, prefix, pi0=pi0)
        weights = sum(t.nbytes for w in model.layers for t in (w.qkv, w.o, w.gate_up, w.down))
        report["floor_ms_weights_at_4.25TBs"] = weights * 10 / 4.25e9
        for variant in arguments.variant:
            pairs = (item.split("=") for item in variant.split(",") if item)
            record("timings", time_variant(model, {name: int(value) for name, value in pairs}))
        if arguments.baseline:
            record("torch_graph", time_torch(model))


if __name__ == "__main__":
    main()
