"""Kernels that are right, and the same kernels with one fault each: what the conformance kit must tell apart."""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F
from phyai.catalog import Catalog
from phyai.environment import Environment, Library
from phyai.kernel import Capture, Kernel, Numerics, Prepared
from phyai.plugins import Plugin, PluginStatus, discover
from phyai.predicates import match
from phyai.testing.conformance import subject_of

EVERYWHERE = {"device.type": ["cpu", "cuda"]}


def same(*names, dtypes=("bf16", "fp32")):
    return {"any_of": [{f"dtype.{name}": dtype for name in names} for dtype in dtypes]}


def kernel(op, prepare, when, *, capture=Capture.SAFE, reproducible=True, batch_invariant=False, **more):
    return Kernel(
        id=f"faulty.{op}", op=op, when=match({**EVERYWHERE, **when}), prepare=prepare, capture=capture,
        numerics=Numerics(reproducible=reproducible, batch_invariant=batch_invariant), **more,
    )  # fmt: skip


def give(y, dtype, out):
    return y.to(dtype) if out is None else out.copy_(y)


def subject(record: Kernel, device: str = "cpu"):
    """The kernel in a catalog with the installed plug-ins (the reference among them), ready to be tested."""
    installed = discover(env={"PHYAI_DISABLE_PLUGINS": ""})
    others = [k for k in installed.kernels if k.backend in ("reference", "torch")]
    plugins = [
        Plugin(PluginStatus("others"), kernels=tuple(others), libraries=(Library("torch", ("torch",), "2.13"),)),
        Plugin(PluginStatus("faulty"), kernels=(record,)),
    ]
    catalog = Catalog.build(plugins)
    return subject_of(record, catalog, Environment.detect(device, libraries=catalog.libraries))


# rms_norm


def rms_norm(fault=None, **more):
    def prepare(facts, weights, params, resources):
        weight = weights.get("weight")
        weight = None if weight is None else weight.clone()  # as a kernel that packs its weights has them
        eps = 1e-6 if fault == "ignores eps" else facts.get("attrs.eps", 1e-6)
        offset = facts.get("attrs.offset", 0)
        seen = {}

        def run(x, out=None, state=None):
            wide = x.float()
            if fault == "believes in contiguous inputs":
                wide = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset()).float()
            y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
            if weight is not None:
                y = y * (weight.float() + (0 if fault == "ignores offset" else offset))
            if fault == "wrong scale":
                y = y * 1.05
            if fault == "random bits":
                y = y * (1 + 1e-6 * torch.rand(y.shape, device=y.device))
            if fault == "keeps the first result":
                y = seen.setdefault("y", y) if seen.get("y", y).shape == y.shape else y
            if fault == "mutates its input":
                x.mul_(2)
            if fault == "another dtype without out" and out is None:
                return y
            if fault == "ignores out":
                return y.to(x.dtype)
            if fault == "unwritten tail" and out is not None and y.dim() == 2:
                rows = len(y) // 4 * 4
                out[:rows] = y[:rows]
                return out
            if fault == "writes past the end" and out is not None and out.dim() == 2 and out.numel():
                last = sum((n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True))
                torch.as_strided(out, (1,), (1,), out.storage_offset() + last + 1).zero_()
            return give(y, x.dtype, out)

        def refresh(new):
            if weight is not None and fault != "keeps old weights":
                weight.copy_(new["weight"])

        return Prepared(run, refresh=refresh)

    when = {"all_of": [same("x", "y"), {"any_of": [{"dtype.weight": None}, same("x", "weight")]}]}
    return kernel("rms_norm", prepare, when, **more)


# gemm


def gemm(fault=None, **more):
    def prepare(facts, weights, params, resources):
        weight, bias = weights["weight"], weights.get("bias")
        scale = params.get("alpha", 1)

        def run(x, out=None, state=None):
            k = x.shape[-1] // 32 * 32 if fault == "wrong when K is no multiple of 32" else x.shape[-1]
            rows = x.reshape(-1, x.shape[-1])
            y = rows[:, :k].float() @ weight[:, :k].float().T
            if fault == "another order for batches" and len(rows) > 1:
                half = k // 2
                y = (
                    rows[:, half:k].float() @ weight[:, half:k].float().T
                    + rows[:, :half].float() @ weight[:, :half].float().T
                )
            elif fault is None and more.get("batch_invariant"):
                y = torch.stack([(row.float()[None] * weight.float()).sum(-1) for row in rows]) if len(rows) else y
            if bias is not None and fault != "ignores bias":
                y = y + bias.float()
            if fault == "a param changes the result":
                y = y * scale
            return give(y.reshape(*x.shape[:-1], len(weight)), x.dtype, out)

        return Prepared(run)

    when = {"quant.scheme": None, "shape.K": "%16", "shape.N": "<=512", **same("x", "weight", "y"),
            "all_of": [{"any_of": [{"dtype.bias": None}, same("x", "bias")]}]}  # fmt: skip
    return kernel("gemm", prepare, when, capture=Capture.AFTER_WARMUP, **more)


# attention_paged


def attention_paged(fault=None):
    from phyai_backend_reference.reference.attention_paged import prepare as reference

    def prepare(facts, weights, params, resources):
        real = reference(facts, weights, params, resources)
        kept = []

        def plan(metadata):
            if fault == "keeps the first plan":
                kept.append({name: t.clone() for name, t in metadata.items()})
                return real.plan(kept[0])
            return real.plan(metadata)

        return attrs.evolve(real, plan=plan)

    return kernel("attention_paged", prepare, same("q", "k_cache", "v_cache", "o"), capture=Capture.AFTER_WARMUP)


# expert_steps


def expert_steps(fault=None):
    """Uses what lies behind the prefixes as scratch."""
    from phyai_backend_reference.reference.expert_steps import prepare as reference

    def prepare(facts, weights, params, resources):
        real = reference(facts, weights, params, resources)

        def run(x, k_cache, v_cache, lengths, fixed=None, out=None, state=None):
            y = real.run(x, k_cache, v_cache, lengths, fixed, out=out)
            for request, length in enumerate(lengths.tolist()):
                first = length - 1 if fault == "overwrites a key" else length
                k_cache[:, request, first:] = v_cache[:, request, length:] = torch.nan
            return y

        return attrs.evolve(real, run=run)

    floats = ("x", "k_cache", "qkv", "modulation", "in_weight")
    return kernel("expert_steps", prepare, same(*floats, dtypes=("fp32",)))


# gated_activation, for what only a GPU shows


def gated_activation(fault=None):
    def prepare(facts, weights, params, resources):
        name = facts.get("attrs.activation", "silu")
        function = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": lambda t: F.gelu(t, approximate="tanh")}[name]
        side = torch.cuda.Stream() if fault == "a stream of its own" else None

        def run(x, out=None, state=None):
            if fault == "waits for the device":
                float(x.sum().item())
            if side is not None:
                with torch.cuda.stream(side):
                    return compute(x, out)
            return compute(x, out)

        def compute(x, out):
            gate, up = x.float().chunk(2, dim=-1)
            return give(function(gate) * up, x.dtype, out)

        return Prepared(run)

    return kernel("gated_activation", prepare, same("x", "y"))
