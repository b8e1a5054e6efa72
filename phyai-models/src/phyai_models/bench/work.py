"""The least that the calls of a pass do, each in the type that its kernel computes in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from phyai.composite import BACKEND, innermost
from phyai.facts import Facts, whole
from phyai.kernel import Band
from phyai.op import Op

from phyai_models.bench.floor import Case, Work, expert
from phyai_models.bench.tape import Call

#: Ops whose weights are read whole and multiplied by every row.
PRODUCTS = (
    "gemm", "mlp", "gated_mlp", "qkv_rope_kv_write", "gemm_gated_residual", "gated_mlp_gated_residual",
    "rms_norm_add_gated_mlp", "rms_norm_add_qkv_rope_kv_write", "conv2d", "patch_embedding",
)  # fmt: skip


def work_of(call: Call, case: Case) -> Work:
    """The least that a call does: products and attention by their operations, weights, keys and values by their bytes.

    A product counts in the type that its inputs are quantized to, where its kernel multiplies them so; weights that are
    quantized alone are multiplied in the inputs' own type. A quantized weight is as many bytes as its codes and scales.
    Reference kernels widen what they get and compute in float32. What else a call reads and writes fits into caches and
    counts nothing.
    """
    site = call.site
    if site is None:
        return Work()
    facts, op = site.facts_of_call(call.args), site.op
    kernel = site.chosen(call.args)
    wide = kernel.backend in ("reference", BACKEND) and kernel.band_on(facts) is Band.REFERENCE
    if op.name == "expert_steps":
        work = expert(case)
        return Work({_computed_in(facts, "dtype.qkv", wide=wide): work.operations}, work.bytes)
    if op.name in PRODUCTS:
        return _product(call, op, facts, wide=wide)
    if op.name == "transformer_encoder":
        return _encoder(call, facts, wide=wide)
    if op.name in ("attention", "attention_paged"):
        return _attention(call, facts, case, wide=wide)
    return Work()


def _product(call: Call, op: Op, facts: Facts, *, wide: bool) -> Work:
    assert call.site is not None
    work = Work()
    given = "dtype.y" if op.name == "patch_embedding" else "dtype.x"  # images are rounded to it
    for name, prefix in _matrices(op):
        weight = call.site.weights[name]
        dtype = _computed_in(facts, given, f"{prefix}quant.activation", wide=wide)
        elements = int(torch.Size(weight.shape).numel())
        work += Work({dtype: 2 * _rows(call, facts, weight) * elements}, _nbytes(weight))
    return work


def _encoder(call: Call, facts: Facts, *, wide: bool) -> Work:
    assert call.site is not None
    weights = [call.site.weights[name] for name in ("qkv", "o", "fc1", "fc2")]
    elements = sum(torch.Size(weight.shape).numel() for weight in weights)
    batch, rows, width, layers = (whole(facts, f"shape.{name}") for name in ("B", "S", "D", "layers"))
    operations = 2 * batch * rows * elements + 4 * batch * rows**2 * width * layers
    return Work({_computed_in(facts, "dtype.x", wide=wide): operations}, elements * weights[0].dtype.itemsize)


def _matrices(op: Op) -> Iterator[tuple[str, str]]:
    """The weights that a product multiplies by, each with what the facts of its form begin with."""
    if not op.parts:
        yield "weight", ""
    for head, part in innermost(op.parts):
        if part.op in ("gemm", "conv2d"):
            yield part.weights["weight"], head


def _computed_in(facts: Facts, dtype: str, quantized: str | None = None, *, wide: bool) -> str:
    """The type that a call computes in, by the facts of its input's dtype and of what that is quantized to."""
    own = str(facts[dtype])
    if wide:
        return "fp64" if own == "fp64" else "fp32"
    return own if quantized is None else str(facts.get(quantized, own))


def _attention(call: Call, facts: Facts, case: Case, *, wide: bool) -> Work:
    heads, kv_heads, dim = (whole(facts, f"shape.{name}") for name in ("heads", "kv_heads", "head_dim"))
    q, itemsize = call.args[0], call.args[0].element_size()
    dtype = _computed_in(facts, "dtype.q", wide=wide)
    queries = q.numel() // (heads * dim)
    if facts.get("op") == "attention":
        return Work({dtype: 4 * queries * call.args[1].shape[-3] * heads * dim})
    prefix = facts.get("role") == "prefix"
    keys = case.prefix_tokens + (0 if prefix else case.suffix_tokens)
    cache = 0 if prefix else 2 * case.batch * case.prefix_tokens * kv_heads * dim * itemsize
    return Work({dtype: 4 * queries * keys * heads * dim}, cache)


def _rows(call: Call, facts: Facts, weight: Any) -> int:
    for name in ("shape.M", "shape.T"):
        if name in facts:
            return whole(facts, name)
    y = call.results[0] if isinstance(call.results, tuple) else call.results
    return int(y.numel() // weight.shape[0])  # a convolution: places of its output


def _nbytes(weight: Any) -> int:
    return int(weight.nbytes if isinstance(weight, torch.Tensor) else weight.nbytes())
