"""The rows as a dispatcher sees them: what wins on a CPU, composite ops by their parts, what a policy can choose."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from harness import OPS, assert_close, oracle, small_calls
from oracles import gated_activation, gemm, kv_write, layer_norm_add, mlp, rope
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher, Site
from phyai.environment import Environment
from phyai.errors import CallError, NoKernelError
from phyai.op import Op
from phyai.plugins import discover
from phyai.policy import default_policy, parse_policy
from phyai.synthesize import SynthesizedCall, synthesize


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return discover()


def dispatcher(catalog: Catalog, rules: str = "") -> Dispatcher:
    policy = default_policy()
    if rules:
        policy = parse_policy(f"schema: phyai.kernel/v1\nrules:\n{rules}", catalog=catalog).policy
    return Dispatcher(catalog, policy, Environment.detect("cpu"))


def bind(d: Dispatcher, call: SynthesizedCall) -> Site:
    inputs = {t.name: call.dtypes[t.name] for t in call.op.inputs if call.inputs[t.name] is not None}
    present = tuple(t.name for t in call.op.inputs if t.optional and call.inputs[t.name] is not None)
    static = {d.name: call.spec.dims[d.name] for d in call.op.dims if not d.dynamic and d.name in call.spec.dims}
    attrs = {name: value for name, value in call.attrs.items() if value is not None}
    return d.bind(call.op.name, weights=call.weights, attrs=attrs, dtypes=inputs, dims=static, present=present)


def small(op: str, name: str, dtype: str | None = None) -> SynthesizedCall:
    spec = next(spec for spec in OPS[op].arg_specs if spec.name == name)
    return synthesize(OPS[op], spec, dtype=dtype)


def winner(site: Site, call: SynthesizedCall) -> str:
    site.run(*call.inputs.values())
    (decision,) = site.decisions
    assert decision.kernel is not None
    return decision.kernel.id


def test_importing_the_plug_in_imports_no_torch() -> None:
    code = "import sys, phyai_backend_reference.plugin as p; list(p.phyai_kernels()); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("op", "spec", "kernel"),
    [
        ("gemm", "small.odd", "torch.gemm.bf16"), ("gemm", "small.fp64", "torch.gemm.fp64"),
        ("rms_norm", "small.odd", "torch.rms_norm"), ("rms_norm", "small.offset", "reference.rms_norm"),
        ("layer_norm", "small.fp32weight", "torch.layer_norm"), ("activation", "small.gelu", "torch.activation.gelu"),
        ("attention", "small.mask", "torch.attention.flash"), ("attention", "small.soft_cap", "reference.attention"),
        ("attention", "small.ragged", "reference.attention"), ("conv2d", "small.groups", "torch.conv2d"),
        ("conv2d", "small.patch", "torch.conv2d.patches"), ("conv2d", "small.plain", "torch.conv2d"),
        ("rope", "small.neox", "reference.rope"), ("ada_rms_norm", "small.odd", "reference.ada_rms_norm"),
        ("gated_residual", "small.odd", "torch.gated_residual"), ("kv_write", "small.paged", "torch.kv_write"),
    ],
)  # fmt: skip
def test_what_a_cpu_runs_by_default(catalog: Catalog, op: str, spec: str, kernel: str) -> None:
    call = small(op, spec)
    assert winner(bind(dispatcher(catalog), call), call) == kernel


@pytest.mark.parametrize("kernel", ["torch.attention.math", "torch.attention.flash", "reference.attention"])
def test_a_policy_chooses_among_attentions(catalog: Catalog, kernel: str) -> None:
    call = small("attention", "small.causal")
    rule = f"  - {{id: mine, match: {{op: attention}}, pin: {kernel}}}"
    assert winner(bind(dispatcher(catalog, rule), call), call) == kernel


def test_a_pinned_kernel_that_cannot_is_an_error_with_the_reason(catalog: Catalog) -> None:
    call = small("attention", "small.soft_cap")
    site = bind(dispatcher(catalog, "  - {id: mine, match: {op: attention}, pin: torch.attention.flash}"), call)
    with pytest.raises(NoKernelError, match="soft_cap"):
        site.run(*call.inputs.values())


def test_planning_and_running_a_paged_site(catalog: Catalog) -> None:
    from oracles import attention_paged

    for name in ("small.slab", "small.paged.causal"):
        call = small("attention_paged", name)
        site = bind(dispatcher(catalog), call)
        state = site.plan(call.metadata, T=call.spec.dims["T"])
        assert_close(call, [site.run(*call.inputs.values(), state=state)], oracle(attention_paged, call), name)


@pytest.mark.parametrize("name", ["small.odd", "small.fp32", "small.fp64"])
def test_a_gated_mlp_is_its_parts(catalog: Catalog, name: str) -> None:
    call = small("gated_mlp", name)
    site = bind(dispatcher(catalog), call)

    def chain(x: Any, w: Any, m: Any, a: dict[str, Any]) -> list[np.ndarray]:
        (hidden,) = gemm(x, {"weight": w["gate_up"]}, m, a)
        (hidden,) = gated_activation({"x": hidden}, {}, m, a)
        return gemm({"x": hidden}, {"weight": w["down"]}, m, a)

    want = oracle(chain, call)
    assert_close(call, [site.run(*call.inputs.values())], want, name)
    out = torch.full(want[0].shape, 99.0, dtype=call.inputs["x"].dtype)
    assert site.run(*call.inputs.values(), out=out) is out
    assert_close(call, [out], want, name)


@pytest.mark.parametrize("op", ["gated_mlp", "qkv_rope_kv_write"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_norm_and_the_block_behind_it_give_the_bits_of_the_two_calls(catalog: Catalog, op: str, dtype: str) -> None:
    name = "small.odd" if op == "gated_mlp" else "small.paged"
    call, apart = (small(f"rms_norm_add_{op}", name, dtype) for _ in range(2))
    d = dispatcher(catalog)
    site = bind(d, call)
    got = site.run(*call.inputs.values())
    assert {s.op.name for s in site.inner} == {"rms_norm_add", op}
    attrs = {name: apart.attrs[name] for name in ("eps", "offset")}
    norm_dtypes = {name: call.dtypes[name] for name in ("x", "residual")}
    norm = d.bind("rms_norm_add", weights={"weight": apart.weights.pop("norm_weight")}, attrs=attrs, dtypes=norm_dtypes)
    x, residual, *others = apart.inputs.values()
    own = {name: value for name, value in apart.attrs.items() if name not in attrs}
    dtypes = {t.name: call.dtypes[t.name] for t in OPS[op].inputs}
    block = d.bind(op, weights=apart.weights, attrs=own, dtypes=dtypes)
    assert torch.equal(got, block.run(norm.run(x, residual), *others))
    assert all(
        torch.equal(mine, theirs) for mine, theirs in zip(call.inputs.values(), apart.inputs.values(), strict=True)
    )


@pytest.mark.parametrize("given_out", [False, True])
@pytest.mark.parametrize("name", ["small.odd", "small.plain", "small.fc1_bias", "small.fp32", "small.fp64"])
def test_an_mlp_is_its_parts(catalog: Catalog, name: str, given_out: bool) -> None:
    call = small("mlp", name)
    site, want = bind(dispatcher(catalog), call), oracle(mlp, call)
    out = torch.full(want[0].shape, 99.0, dtype=call.inputs["x"].dtype) if given_out else None
    y = site.run(*call.inputs.values(), out=out)
    assert out is None or y is out
    assert_close(call, [y], want, name)


@pytest.mark.parametrize("given_out", [False, True])
@pytest.mark.parametrize("name", ["small.odd", "small.plain", "small.weight", "small.fp32weight", "small.fp64"])
def test_a_layer_norm_behind_an_addition_is_its_part(catalog: Catalog, name: str, given_out: bool) -> None:
    call = small("layer_norm_add", name)
    site, want = bind(dispatcher(catalog), call), oracle(layer_norm_add, call)
    out = torch.full(want[0].shape, 99.0, dtype=call.inputs["x"].dtype) if given_out else None
    y = site.run(*call.inputs.values(), out=out)
    assert out is None or y is out
    assert_close(call, [y, call.inputs["residual"]], want, name)


def test_sums_before_a_layer_norm_are_exact_in_half_precision() -> None:
    for dtype in ("bf16", "fp16"):
        x, residual = small("layer_norm_add", "small.plain", dtype).inputs.values()
        assert torch.equal((x + residual).double(), x.double() + residual.double())
        assert x.unique().numel() > 20


@pytest.mark.parametrize("given_out", [False, True])
@pytest.mark.parametrize("name", ["small.paged", "small.bias", "small.partial", "small.fp64"])
def test_projection_rotation_and_cache_write_are_their_parts(catalog: Catalog, name: str, given_out: bool) -> None:
    call = small("qkv_rope_kv_write", name)
    site = bind(dispatcher(catalog), call)

    def chain(x: Any, w: Any, m: Any, a: dict[str, Any]) -> list[np.ndarray]:
        (qkv,) = gemm(x, w, m, a)
        heads, kv_heads, size = a["heads"], a["kv_heads"], a["head_dim"]
        q, k, v = np.split(qkv.reshape(len(qkv), -1, size), [heads, heads + kv_heads], axis=1)
        rotation = {"style": a["style"], "mrope_sections": None}
        q, k = rope({"q": q, "k": k, "positions": x["positions"]}, w, m, rotation)
        return [q, *kv_write({**x, "k": k, "v": v}, w, m, a)]

    want = oracle(chain, call)
    out = torch.full(want[0].shape, 99.0, dtype=call.inputs["x"].dtype) if given_out else None
    q = site.run(*call.inputs.values(), out=out)
    assert out is None or q is out
    assert_close(call, [q, call.inputs["k_cache"], call.inputs["v_cache"]], want, name)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.outputs], ids=lambda op: op.name)
def test_what_a_call_returned_fits_as_its_out_and_one_column_more_does_not(catalog: Catalog, op: Op) -> None:
    for spec, _ in small_calls(op):
        call = synthesize(op, spec)
        site = bind(dispatcher(catalog), call)
        state = site.plan(call.metadata, T=spec.dims["T"]) if op.metadata else None
        returned = site.run(*call.inputs.values(), state=state)
        several = isinstance(returned, tuple)
        tensors = list(returned) if several else [returned]
        places = [torch.empty_like(tensor) for tensor in tensors]
        for _ in range(2):  # new, then remembered
            site.run(*call.inputs.values(), out=tuple(places) if several else places[0], state=state)
            for i, place in enumerate(places):
                wrong = [*places[:i], place.new_empty((*place.shape[:-1], place.shape[-1] + 1)), *places[i + 1 :]]
                with pytest.raises(CallError, match=f"{op.name} at site .*: out (has shape|does not fit)"):
                    site.run(*call.inputs.values(), out=tuple(wrong) if several else wrong[0], state=state)
