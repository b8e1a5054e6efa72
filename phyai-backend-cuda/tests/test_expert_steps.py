"""The call site of the persistent expert: on a CPU, what it gives the kernel, whose mathematics stands in for it; on a
Hopper GPU, the kernel itself, eager and captured."""

from __future__ import annotations

import attrs
import pytest
import torch
from phyai.facts import Facts
from phyai.op import ArgSpec
from phyai.ops.expert_steps import OP
from phyai.synthesize import synthesize
from phyai.testing.case import MEMORY
from phyai.testing.memory import move
from phyai_backend_cuda.expert import steps
from phyai_backend_cuda.expert.weights import gate_up_order, qkv_order
from phyai_backend_reference.reference.expert_steps import prepare as prepare_reference

REAL = {spec.name: spec for spec in OP.arg_specs}


def short(name: str) -> ArgSpec:
    """A real call with few rows, layers, steps and keys."""
    few = {"M": 10, "layers": 2, "norms": 5, "steps": 3, "page_size": 49, "max_position": 49}
    return attrs.evolve(REAL[name], dims={**REAL[name].dims, **few})


PI05, PI0 = short("pi05.expert"), short("pi0.expert")
both = pytest.mark.parametrize("spec", [PI05, PI0], ids=["pi05", "pi0"])

if not torch.cuda.is_available():
    WHY_NOT = "needs an NVIDIA GPU"
elif torch.cuda.get_device_capability() != (9, 0):
    WHY_NOT = "needs a Hopper GPU (sm90)"
else:
    WHY_NOT = ""
on_hopper = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "has one")


class Emulated:
    """What the kernel computes, from the layers and tables that it is given, in float32."""

    def __init__(
        self, layers, tables, *, in_weight, in_bias, out_weight, dt, cos_sin, queries, capacity, eps,
        fixed, embedding,
    ):  # fmt: skip
        self.fixed, self.embedding = fixed, embedding
        self.layers, self.t, self.eps = layers, tables, eps
        self.in_w, self.in_b, self.out_w, self.dt, self.cos_sin = in_weight, in_bias, out_weight, dt, cos_sin
        self.tensors = {"lengths": torch.zeros(2, dtype=torch.int32), "actions": torch.zeros(queries, 32)}
        self.tensors |= {"fixed": torch.zeros(1024)} if fixed else {}
        self.loaded = False

    def bind_cache(self, keys, values):
        assert len(keys) == len(values) == len(self.layers)
        assert all(t.shape[1:] == (256,) for t in (*keys, *values))
        # what ``pack_kv`` reads: 16 bytes at a time, with one stride between keys
        assert not any(t.data_ptr() % 16 or t.stride(0) % 8 or t.stride(1) != 1 for t in (*keys, *values))
        assert len({t.stride(0) for t in (*keys, *values)}) == 1
        self.keys, self.values = keys, values

    def load_prefix(self):
        self.loaded = True

    def rotate(self, x, first):
        cos, sin = self.cos_sin[first : first + len(x), None].chunk(2, -1)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def normed(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def product(self, x, scale, shift, weight, order):
        """``norm(x) * scale`` by the weight in the kernel's order of rows, plus the table; back in its own order."""
        y = torch.empty(len(x), len(weight))
        y[:, order] = (self.normed(x) * scale) @ weight.float()[order].T + shift
        return y

    def embedded(self, a, step):
        h = a @ self.in_w.T + self.in_b
        if self.embedding is not None:
            e = self.embedding
            h = torch.nn.functional.silu(h + e.time[step]) @ e.weight.T + e.bias
        return torch.cat([self.tensors["fixed"][None], h]) if self.fixed else h

    def run(self):
        assert self.loaded
        prefix, first = self.tensors["lengths"].tolist()
        rows = len(self.tensors["actions"]) + self.fixed
        unseen = torch.zeros(rows, prefix + rows, dtype=torch.bool)
        unseen[: self.fixed, prefix + self.fixed :] = True
        a = self.tensors["actions"]
        for s in range(len(self.dt)):
            h = self.embedded(a, s)
            for i, w in enumerate(self.layers):
                t = {name: table[s, i] for name, table in self.t.items() if table.dim() == 3}
                q, k, v = self.product(h, t["scale1"], t["shift_qkv"], w.qkv, qkv_order()).split((2048, 256, 256), -1)
                q, k = self.rotate(q.view(-1, 8, 256), first), self.rotate(k[:, None], first)[:, 0]
                keys, values = (torch.cat([c[i][:prefix].float(), n]) for c, n in ((self.keys, k), (self.values, v)))
                o = torch.softmax((q.transpose(0, 1) @ keys.T / 16).masked_fill(unseen, -torch.inf), -1) @ values
                h = h + t["gate1"] * (o.transpose(0, 1).flatten(1) @ w.o.float().T)
                g, u = self.product(h, t["scale2"], t["shift_gu"], w.gate_up, gate_up_order()).chunk(2, -1)
                h = h + t["gate2"] * ((torch.nn.functional.gelu(g, approximate="tanh") * u) @ w.down.float().T)
            y = (self.normed(h) * self.t["scale_f"][s]) @ self.out_w.float().T + self.t["shift_out"][s]
            a = a + self.dt[s] * y[self.fixed :]
        self.tensors["actions"].copy_(a)
        return self.tensors["actions"]


def facts(call):
    return Facts({**call.facts()})


def reference(call):
    return prepare_reference(facts(call), call.weights, {}, None).run(*call.inputs.values())


@both
def test_the_kernel_is_given_what_the_op_says(spec, monkeypatch):
    monkeypatch.setattr(steps, "Expert", Emulated)
    call = synthesize(OP, spec, seed=3)
    got = steps.prepare(facts(call), call.weights, {}, None).run(*call.inputs.values())
    want = reference(call)
    noise = call.inputs["x"]
    assert torch.linalg.norm(got - want) < 1e-4 * torch.linalg.norm(want - noise)


@both
def test_other_lengths_and_an_output_of_the_caller(spec, monkeypatch):
    monkeypatch.setattr(steps, "Expert", Emulated)
    call = synthesize(OP, spec, seed=4)
    prepared = steps.prepare(facts(call), call.weights, {}, None)
    prepared.run(*call.inputs.values())
    for length in (1, 17, 38):
        call.inputs["lengths"].fill_(length)
        out = torch.full_like(call.inputs["x"], 99.0)
        assert prepared.run(*call.inputs.values(), out=out) is out
        torch.testing.assert_close(out, reference(call), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("memory", [*MEMORY, ("dense", "rows")], ids=str)
def test_caches_lie_as_they_like(memory, monkeypatch):
    monkeypatch.setattr(steps, "Expert", Emulated)
    call = synthesize(OP, PI05, seed=7)
    forms = (memory, memory) if isinstance(memory, str) else memory
    call.inputs.update({n: move(call.inputs[n], form) for n, form in zip(("k_cache", "v_cache"), forms, strict=True)})
    prepared = steps.prepare(facts(call), call.weights, {}, None)
    for _ in range(2):
        torch.testing.assert_close(prepared.run(*call.inputs.values()), reference(call), rtol=1e-3, atol=1e-3)
        call.inputs["k_cache"].mul_(-0.5)  # another request's, in the same memory
        call.inputs["v_cache"].mul_(-0.5)


@pytest.mark.gpu
@on_hopper
@both
def test_the_kernel_itself_eager_captured_and_with_new_weights(spec):
    call = synthesize(OP, spec, seed=5, device="cuda")
    prepared = steps.prepare(facts(call), call.weights, {}, None)

    def check(got):
        want, noise = reference(call), call.inputs["x"]
        assert torch.linalg.norm(got - want) < 2e-2 * torch.linalg.norm(want - noise)

    check(prepared.run(*call.inputs.values()))
    out = torch.empty_like(call.inputs["x"])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prepared.run(*call.inputs.values(), out=out)
    for length in (38, 1, 20):
        call.inputs["lengths"].fill_(length)
        if call.inputs["fixed"] is not None:
            call.inputs["fixed"].mul_(-1)
        graph.replay()
        check(out)
    other = synthesize(OP, spec, seed=6, device="cuda").weights
    prepared.refresh(other)
    call.weights.update(other)
    graph.replay()
    check(out)
