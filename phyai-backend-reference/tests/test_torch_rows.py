"""``torch.*`` against the oracles, and their capability: what it holds for is right, what it refuses is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import torch
from harness import (
    DEVICE,
    KERNELS,
    OPS,
    TORCH,
    assert_close,
    compute,
    eligible,
    exact,
    prepare,
    run,
    small_calls,
    with_inputs,
)
from phyai.kernel import Band, Kernel
from phyai.op import ArgSpec
from phyai.synthesize import synthesize, torch_dtype

DTYPES = (None, "bf16", "fp16", "fp32", "fp64")
#: Kernels that a CPU has, in the order in which they are declared.
ON_CPU = [
    kernel
    for kernel in TORCH
    if not kernel.id.endswith(("cudnn", "efficient", "varlen", "fp8_tensor", "fp8_channel", "addmm_activation"))
]
#: Every kernel with every small call; (kernel, spec, dtype) is eligible or not.
ALL = [
    (kernel, spec, dtype, eligible(kernel, synthesize(OPS[kernel.op], spec, dtype=dtype)))
    for kernel in ON_CPU
    for spec, dtype in small_calls(OPS[kernel.op], DTYPES)
]


def _cases(held: bool) -> list[Any]:
    return [
        pytest.param(kernel, spec, dtype, id=f"{kernel.id}-{spec.name}-{dtype or 'own'}")
        for kernel, spec, dtype, holds in ALL
        if holds is held
    ]


@pytest.mark.parametrize(("kernel", "spec", "dtype"), _cases(True))
def test_equals_the_oracle(kernel: Kernel, spec: ArgSpec, dtype: str | None) -> None:
    op = OPS[kernel.op]
    want = exact(op, spec, dtype)
    call = synthesize(op, spec, dtype=dtype)
    assert_close(call, compute(kernel, call), want, kernel.id)


@pytest.mark.parametrize(("kernel", "spec", "dtype"), _cases(True))
def test_writes_a_given_output_whatever_the_strides(kernel: Kernel, spec: ArgSpec, dtype: str | None) -> None:
    op = OPS[kernel.op]
    want = exact(op, spec, dtype)
    plain = synthesize(op, spec, dtype=dtype)
    call = with_inputs(plain, lambda t: t.unsqueeze(-1).repeat_interleave(2, -1)[..., 0])
    outputs = [
        torch.full((*w.shape, 2), 99.0, dtype=t.dtype)[..., 0]
        for w, t in zip(want, compute(kernel, plain), strict=True)
    ][: len(op.outputs)]
    out = None if not outputs else outputs[0] if len(outputs) == 1 else tuple(outputs)
    got = run(prepare(kernel, call), call, out)
    assert all(g is o for g, o in zip(got, outputs, strict=False))
    assert_close(call, got, want, kernel.id)


@pytest.mark.parametrize("kernel", ON_CPU, ids=lambda kernel: kernel.id)
def test_runs_on_this_cpu(kernel: Kernel) -> None:
    assert any(k is kernel and holds for k, _, _, holds in ALL)
    assert kernel.band is Band.GENERAL


@pytest.mark.parametrize("kernel", [k for k in TORCH if k not in ON_CPU and "fp8" not in k.id], ids=lambda k: k.id)
def test_needs_a_gpu_and_says_so(kernel: Kernel) -> None:
    for spec, dtype in small_calls(OPS[kernel.op], DTYPES):
        assert not eligible(kernel, synthesize(OPS[kernel.op], spec, dtype=dtype))
    facts = synthesize(OPS[kernel.op], OPS[kernel.op].arg_specs[0]).facts(DEVICE)
    assert "device.type" in (kernel.when.why_not(facts) or "")


# What a capability refuses would fail, or be wrong.


def _spec(op: str, name: str, **changes: Any) -> ArgSpec:
    return attrs.evolve(next(spec for spec in OPS[op].arg_specs if spec.name == name), **changes)


REFUSED = [
    ("torch.layer_norm", _spec("layer_norm", "small.odd", dtypes={"x": "fp32", "weight": "bf16", "bias": "bf16"})),
    ("torch.layer_norm", _spec("layer_norm", "small.odd", dtypes={"x": "fp64", "weight": "fp32", "bias": "fp32"})),
    ("torch.group_norm", _spec("group_norm", "small.odd", dtypes={"x": "fp16", "weight": "bf16", "bias": "bf16"})),
    ("torch.gemm.fp32", _spec("gemm", "small.fp32", dtypes={"x": "fp32", "weight": "bf16", "bias": "fp32"})),
    ("torch.gemm.bf16", _spec("gemm", "small.odd", dtypes={"x": "bf16", "weight": "bf16", "y": "fp32"})),
    ("torch.kv_write", _spec("kv_write", "small.paged", dtypes={"k": "fp32", "v": "fp32", "k_cache": "bf16"})),
    ("torch.embedding", _spec("embedding", "small.shard")),
    ("torch.attention.flash", _spec("attention", "small.soft_cap")),
    ("torch.attention.math", _spec("attention", "small.soft_cap")),
    ("torch.attention.flash", _spec("attention", "small.ragged")),
    ("torch.attention_paged.sdpa_flash", _spec("attention_paged", "small.paged")),
    ("torch.attention_paged.sdpa_math", _spec("attention_paged", "small.paged")),
    ("torch.attention_paged.sdpa_flash", _spec("attention_paged", "small.paged.soft_cap")),
]


@pytest.mark.parametrize(("id", "spec"), REFUSED, ids=lambda value: value if isinstance(value, str) else value.name)
def test_what_is_refused_would_fail_or_be_wrong(id: str, spec: ArgSpec) -> None:
    kernel = KERNELS[id]
    call = synthesize(OPS[kernel.op], spec)
    assert not eligible(kernel, call)
    want = exact(OPS[kernel.op], spec, None)

    def outcome() -> None:
        got = compute(kernel, call)
        assert got[0].dtype == torch_dtype(call.dtypes[OPS[kernel.op].outputs[0].name])
        assert_close(call, got, want, id)

    with pytest.raises((RuntimeError, IndexError, ValueError, AssertionError)):
        outcome()


def test_lengths_fixed_by_a_plan_are_refused_where_a_graph_may_see_others() -> None:
    kernel, spec = KERNELS["torch.attention_paged.sdpa_flash"], _spec("attention_paged", "small.slab")
    call = synthesize(OPS["attention_paged"], spec)
    assert eligible(kernel, call)
    assert eligible(kernel, call, {**DEVICE, "mode.capture": False})
    assert not eligible(kernel, call, {**DEVICE, "mode.capture": True})
    fixed = synthesize(OPS["attention_paged"], attrs.evolve(spec, attrs={**spec.attrs, "fixed_lengths": True}))
    assert eligible(kernel, fixed, {**DEVICE, "mode.capture": True})

    prepared = prepare(kernel, call)
    state = prepared.plan(call.metadata)
    before = prepared.run(*call.inputs.values(), state=state)
    call.metadata["last_page_len"].fill_(1)
    assert torch.equal(prepared.run(*call.inputs.values(), state=state), before)


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("gemm", {"M": 0}), ("rms_norm", {"M": 0}), ("layer_norm", {"M": 0}), ("group_norm", {"B": 0}),
        ("activation", {"M": 0}), ("gated_activation", {"M": 0}), ("conv2d", {"B": 0}), ("causal_conv", {"T": 0}),
        ("causal_conv", {"B": 0}), ("embedding", {"M": 0}), ("gated_residual", {"M": 0}), ("kv_write", {"T": 0}),
        ("attention", {"B": 0}), ("attention", {"Sq": 0}), ("attention", {"Sk": 0}),
    ],
)  # fmt: skip
def test_an_empty_call_gives_what_the_reference_gives(op: str, dims: dict[str, int]) -> None:
    spec = next(spec for spec in OPS[op].arg_specs if spec.name.startswith("small."))
    spec = attrs.evolve(spec, dims={**spec.dims, **dims})
    want = compute(KERNELS[f"reference.{op}"], synthesize(OPS[op], spec))
    for kernel in ON_CPU:
        call = synthesize(OPS[op], spec)
        if kernel.op == op and eligible(kernel, call):
            for g, w in zip(compute(kernel, call), want, strict=True):
                assert torch.equal(g, w)


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    op, spec = OPS["attention"], _spec("attention", "small.fp32.mask")
    for variant in ("flash", "math"):
        call = synthesize(op, spec)
        call.inputs["mask"][0, 2] = False
        o = compute(KERNELS[f"torch.attention.{variant}"], call)[0]
        assert not o[0, 2].any()
        assert o[0, 1].any()
        assert o[1, 2].any()


def test_requests_of_equal_lengths_on_neighbouring_pages_are_one_call() -> None:
    from phyai_backend_reference.torch_rows.attention_paged import Batch, plan

    metadata = {
        "cu_seqlens_q": torch.tensor([0, 3, 6, 8]),
        "kv_indptr": torch.tensor([0, 1, 2, 3]),
        "kv_indices": torch.tensor([4, 5, 6]),
        "last_page_len": torch.tensor([7, 7, 7]),
    }
    assert plan(metadata) == (
        Batch(first_row=0, queries=3, first_page=4, keys=7, requests=2),
        Batch(first_row=6, queries=2, first_page=6, keys=7, requests=1),
    )


@pytest.mark.parametrize(
    "id",
    [
        "torch.gemm.fp32",
        "torch.rms_norm",
        "torch.layer_norm",
        "torch.conv2d",
        "torch.conv2d.patches",
        "torch.embedding",
    ],
)
def test_refresh_takes_new_weights_in_place(id: str) -> None:
    op = OPS[KERNELS[id].op]
    name = {"torch.rms_norm": "small.fp64", "torch.embedding": "small.plain"}.get(id, "small.fp32")
    name = {"torch.conv2d": "small.padding", "torch.conv2d.patches": "small.patch"}.get(id, name)
    spec = _spec(op.name, name)
    call, other = synthesize(op, spec), synthesize(op, spec, seed=1)
    prepared = prepare(KERNELS[id], call)
    assert prepared.refresh is not None
    prepared.refresh(other.weights)
    call.inputs.update(synthesize(op, spec, seed=1).inputs)
    assert_close(call, run(prepared, call), exact(op, spec, None, seed=1), id)


@pytest.mark.parametrize("edge", [0, 3])
@pytest.mark.parametrize("kernel", [4, 3])
def test_patches_are_the_convolution_and_lie_channels_last(kernel: int, edge: int) -> None:
    """What is left over at the edges is of no patch; 27 elements a patch are padded, 48 are not."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 3 * kernel + edge % kernel, 2 * kernel, generator=generator)
    weight, bias = torch.randn(5, 3, kernel, kernel, generator=generator), torch.randn(5, generator=generator)
    load = KERNELS["torch.conv2d.patches"].load()
    run = load({}, {"weight": weight, "bias": bias}, {}, None).run  # type: ignore[arg-type]
    want = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), stride=kernel).float()
    torch.testing.assert_close(run(x), want)
    assert run(x).is_contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(want)
    assert run(x, out=out) is out
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize(
    "change", [{"stride": 3}, {"stride": 4, "padding": 1}, {"stride": 4, "dilation": 2}, {"stride": 4, "groups": 3}]
)
def test_a_convolution_of_anything_but_patches_is_refused(change: dict[str, int]) -> None:
    from phyai.facts import Facts

    op, spec = OPS["conv2d"], _spec("conv2d", "small.patch")
    assert eligible(KERNELS["torch.conv2d.patches"], synthesize(op, spec))
    dims = {f"shape.{name}": size for name, size in spec.dims.items()}
    given = {**dims, **{f"attrs.{name}": value for name, value in change.items()}}
    facts = Facts({**given, **op.derive(given)})  # type: ignore[misc]
    assert "attrs.patches" in (KERNELS["torch.conv2d.patches"].when.why_not(facts) or "")


# FP8


def fp8_call(granularity: str, activation: str, dynamic: bool, m: int = 5, n: int = 32, k: int = 48) -> Any:
    """A weight, its facts' source, and inputs: ``(QuantizedWeight, x, bias)``."""
    from phyai.quant import QuantScheme, TensorQuant
    from phyai.quant.weight import QuantizedWeight

    generator = torch.Generator().manual_seed(0)
    scheme = QuantScheme(TensorQuant("fp8_e4m3", granularity), TensorQuant("fp8_e4m3", activation, dynamic=dynamic))
    rows = n if granularity == "channel" else 1
    weight = QuantizedWeight(
        scheme, (n, k),
        codes=torch.randn(n, k, generator=generator).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn),
        scale=torch.rand(rows, 1, generator=generator) * 1e-3 + 1e-4,
        input_scale=None if dynamic else torch.tensor(0.01),
    )  # fmt: skip
    x = torch.randn(m, k, generator=generator).to(torch.bfloat16)
    return weight, x, torch.randn(n, generator=generator).to(torch.bfloat16)


def fp8_facts(weight: Any, changes: Mapping[str, Any] = {}) -> Any:
    from phyai.facts import Facts

    n, k = weight.shape
    shape = {"op": "gemm", "shape.N": n, "shape.K": k, "shape.M": 5}
    dtypes = {"dtype.x": "bf16", "dtype.y": "bf16", "dtype.bias": "bf16"}
    return Facts({**DEVICE, **shape, **dtypes, **weight.facts(), **changes})


@pytest.mark.parametrize(
    ("id", "granularity", "activation", "dynamic"),
    [
        ("torch.gemm.fp8_tensor", "tensor", "tensor", True),
        ("torch.gemm.fp8_tensor", "tensor", "tensor", False),
        ("torch.gemm.fp8_channel", "channel", "token", True),
        ("torch.gemm.fp8_channel", "channel", "tensor", False),
        ("torch.gemm.fp8_channel", "tensor", "token", True),
    ],
)
@pytest.mark.parametrize("m", [1, 5, 0])
def test_fp8_equals_the_reference(id: str, granularity: str, activation: str, dynamic: bool, m: int) -> None:
    weight, x, bias = fp8_call(granularity, activation, dynamic, m)
    facts = fp8_facts(weight)
    reference = next(k for k in KERNELS.values() if k.id == "reference.gemm.quantized_input")
    eligible_ids = [k.id for k in TORCH if k.op == "gemm" and k.when.holds(facts)]
    assert eligible_ids == [id]
    weights = {"weight": weight, "bias": bias}
    got, want = (k.load()(facts, weights, {}, None).run(x) for k in (KERNELS[id], reference))
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    torch.testing.assert_close(got.float(), want.float(), rtol=1e-2, atol=1e-2)


def test_fp8_takes_new_weights_in_place() -> None:
    weight, x, bias = fp8_call("channel", "tensor", dynamic=False)
    prepared = KERNELS["torch.gemm.fp8_channel"].load()(fp8_facts(weight), {"weight": weight, "bias": bias}, {}, None)
    new = attrs.evolve(weight, scale=weight.scale * 2, input_scale=weight.input_scale / 2, codes=weight.codes.flip(0))
    want = KERNELS["torch.gemm.fp8_channel"].load()(fp8_facts(new), {"weight": new, "bias": bias}, {}, None).run(x)
    prepared.refresh({"weight": new, "bias": bias})
    assert torch.equal(prepared.run(x), want)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape.K": 40}, {"shape.N": 8}, {"dtype.bias": "fp32"}, {"quant.weight": "fp8_e5m2"}, {"dtype.y": "fp32"},
        {"quant.second_scale": True}, {"quant.pre_scale": True}, {"quant.layout": "humming"},
        {"quant.activation": "int8"}, {"device.type": "cuda", "device.arch": "sm80"},
    ],
    ids=str,
)  # fmt: skip
def test_fp8_refuses(changes: dict[str, Any]) -> None:
    weight, _, _ = fp8_call("channel", "token", dynamic=True)
    assert KERNELS["torch.gemm.fp8_channel"].when.holds(fp8_facts(weight))
    assert not any(k.when.holds(fp8_facts(weight, changes)) for k in TORCH if k.op == "gemm")


def test_a_reason_names_the_number() -> None:
    weight, _, _ = fp8_call("channel", "token", dynamic=True)
    why = KERNELS["torch.gemm.fp8_channel"].when.why_not(fp8_facts(weight, {"shape.K": 100}))
    assert why == "shape.K=100 is not a multiple of 16"


def test_fp8_maps_the_largest_magnitude_to_the_largest_code() -> None:
    from phyai_backend_reference.torch_rows.gemm_fp8 import _input_scale

    rows = torch.tensor([[1.0, -896.0], [0.0, 0.0]])
    assert _input_scale(rows, per_token=True).tolist() == [[2.0], [1.0]]
    assert _input_scale(rows, per_token=False).item() == 2.0
