"""``reference.*`` against the oracles, over every small argument spec, dtype, stride and empty size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from harness import (
    KERNELS,
    OPS,
    REFERENCE,
    assert_close,
    compute,
    eligible,
    exact,
    prepare,
    run,
    small_calls,
    with_inputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CallError
from phyai.kernel import Band, Kernel
from phyai.op import ArgSpec
from phyai.synthesize import synthesize, torch_dtype
from phyai_backend_reference.numerics import by_group

DTYPES = (None, "bf16", "fp16", "fp32", "fp64")
CASES = [
    pytest.param(kernel, spec, dtype, id=f"{kernel.op}-{spec.name}-{dtype or 'own'}")
    for kernel in REFERENCE
    for spec, dtype in small_calls(OPS[kernel.op], DTYPES)
]
ONCE = [
    pytest.param(kernel, spec, id=f"{kernel.op}-{spec.name}")
    for kernel in REFERENCE
    for spec, _ in small_calls(OPS[kernel.op])
]


def test_there_is_one_for_every_op_that_is_not_composite() -> None:
    assert {kernel.op for kernel in REFERENCE} == {op.name for op in OPS.values() if not op.composite}
    assert all(kernel.band is Band.REFERENCE for kernel in REFERENCE)


@pytest.mark.parametrize(("kernel", "spec", "dtype"), CASES)
def test_equals_the_oracle(kernel: Kernel, spec: ArgSpec, dtype: str | None) -> None:
    call = synthesize(OPS[kernel.op], spec, dtype=dtype)
    assert eligible(kernel, call)
    want = exact(OPS[kernel.op], spec, dtype)
    got = compute(kernel, call)
    for tensor, output in zip(got, call.op.outputs, strict=False):
        assert tensor.dtype == torch_dtype(call.dtypes[output.name])
    assert_close(call, got, want, kernel.id)


@pytest.mark.parametrize(("kernel", "spec"), ONCE)
def test_writes_all_of_a_given_output(kernel: Kernel, spec: ArgSpec) -> None:
    op = OPS[kernel.op]
    want = compute(kernel, synthesize(op, spec))[: len(op.outputs)]
    call = synthesize(op, spec)
    poisoned = [torch.full_like(t, 99.0) for t in want]
    out = None if not poisoned else poisoned[0] if len(poisoned) == 1 else tuple(poisoned)
    got = run(prepare(kernel, call), call, out)
    for tensor, given_tensor, right in zip(got, poisoned, want, strict=False):
        assert tensor is given_tensor
        assert torch.equal(tensor, right)


@pytest.mark.parametrize(("kernel", "spec"), ONCE)
def test_strides_do_not_matter(kernel: Kernel, spec: ArgSpec) -> None:
    def spread(t: torch.Tensor) -> torch.Tensor:
        """The same values, every other element of something larger, and the last two dimensions exchanged."""
        wide = torch.full((*t.shape, 2), 99.0, dtype=t.dtype)
        wide[..., 0] = t
        return wide[..., 0].transpose(-1, -2).contiguous().transpose(-1, -2) if t.dim() > 1 else wide[..., 0]

    op = OPS[kernel.op]
    want = compute(kernel, synthesize(op, spec))
    got = compute(kernel, with_inputs(synthesize(op, spec), spread))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.float(), w.float(), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("gemm", {"M": 0}), ("rms_norm", {"M": 0}), ("rms_norm_add", {"M": 0}), ("layer_norm", {"M": 0}),
        ("ada_rms_norm", {"M": 0, "R": 1}), ("ada_rms_norm", {"M": 0, "R": 0}), ("group_norm", {"B": 0}),
        ("channel_l2_norm", {"B": 0}), ("channel_l2_norm", {"S": 0}), ("activation", {"M": 0}),
        ("gated_activation", {"M": 0}), ("modulation", {"M": 0, "R": 0}), ("gated_residual", {"M": 0, "R": 1}),
        ("embedding", {"M": 0}), ("rope", {"M": 0, "P": 0}), ("kv_write", {"T": 0}), ("conv2d", {"B": 0}),
        ("causal_conv", {"T": 0}), ("causal_conv", {"B": 0}), ("quantize_activation", {"M": 0, "S": 0}),
        ("attention", {"B": 0}), ("attention", {"Sq": 0}), ("attention", {"Sk": 0}), ("attention_paged", {"T": 0}),
    ],
)  # fmt: skip
def test_an_empty_call_gives_an_empty_result(op: str, dims: dict[str, int]) -> None:
    spec = OPS[op].arg_specs[[s.name.startswith("small.") for s in OPS[op].arg_specs].index(True)]
    call = synthesize(OPS[op], ArgSpec("empty", {**spec.dims, **dims}, spec.dtypes, spec.attrs, spec.present))
    got = compute(KERNELS[f"reference.{op}"], call)
    sizes = [t.numel() for t in got[: len(call.op.outputs)]]
    if "Sk" in dims:
        assert not got[0].any()  # no key: zeros
    elif op != "kv_write":
        assert sizes[0] == 0


@pytest.mark.parametrize(("kernel", "spec"), [case for case in ONCE if OPS[case.values[0].op].weights])
def test_refresh_takes_new_weights_in_place(kernel: Kernel, spec: ArgSpec) -> None:
    op = OPS[kernel.op]
    call, other = synthesize(op, spec), synthesize(op, spec, seed=1)
    prepared = prepare(kernel, call)
    addresses = {name: t.data_ptr() for name, t in call.weights.items()}
    assert prepared.refresh is not None
    prepared.refresh(other.weights)
    call.inputs.update(synthesize(op, spec, seed=1).inputs)
    assert_close(call, run(prepared, call), exact(op, spec, None, seed=1), kernel.id)
    assert {name: t.data_ptr() for name, t in call.weights.items()} == addresses


@pytest.mark.parametrize("name", [t.name for t in OPS["expert_steps"].tensors if t.kind in ("input", "weight")])
def test_every_tensor_of_a_synthesized_expert_counts(name: str) -> None:
    """What a call is checked with shows when a kernel drops an argument: more than the op's tolerance allows."""
    op = OPS["expert_steps"]
    spec = next(spec for spec in op.arg_specs if spec.name == "small.timed")
    call, other = (synthesize(op, spec, dtype="fp32") for _ in range(2))
    kind = other.inputs if name in other.inputs else other.weights
    kind[name] = kind[name] - 1 if name == "lengths" else kind[name].zero_()
    want, got = (compute(KERNELS["reference.expert_steps"], c)[0] for c in (call, other))
    assert torch.linalg.norm(got - want) > op.tolerance["fp32"].relative_norm * torch.linalg.norm(want)


def test_rows_that_a_condition_does_not_divide_are_an_error() -> None:
    spec = ArgSpec("uneven", {"M": 5, "R": 2, "D": 4})
    with pytest.raises(CallError, match="R=2 rows of the condition do not divide the M=5 rows"):
        compute(KERNELS["reference.ada_rms_norm"], synthesize(OPS["ada_rms_norm"], spec))
    with pytest.raises(CallError, match="x has 5 rows, which 2 rows of the condition do not divide"):
        by_group(torch.ones(5, 4), 2)  # a frozen site asks no more


def test_a_batch_dimension_of_the_condition_meets_its_batch() -> None:
    """``[B, S, D]`` with one condition per batch entry: what a model calls, against the flat form."""
    x, modulation = torch.randn(3, 5, 8), torch.randn(3, 24)
    call = synthesize(OPS["ada_rms_norm"], ArgSpec("batch", {"M": 15, "R": 3, "D": 8}), dtype="fp32")
    prepared = prepare(KERNELS["reference.ada_rms_norm"], call)
    y, gate = prepared.run(x, modulation)
    scale, shift, want_gate = modulation.chunk(3, -1)
    want = torch.nn.functional.rms_norm(x, (8,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]
    torch.testing.assert_close(y, want)
    assert torch.equal(gate, want_gate)


def test_attention_takes_any_leading_dimensions() -> None:
    spec = next(spec for spec in OPS["attention"].arg_specs if spec.name == "small.mask")
    call = synthesize(OPS["attention"], spec, dtype="fp32")
    q, k, v, mask, *_ = call.inputs.values()
    for id in ("reference.attention", "torch.attention.flash", "torch.attention.math"):
        run_ = prepare(KERNELS[id], call).run
        flat = run_(q, k, v, mask)
        deep = run_(*(t.unflatten(0, (2, 1)) for t in (q, k, v)), mask)
        assert deep.shape == (2, 1, *q.shape[1:])
        assert torch.equal(deep.flatten(0, 1), flat)
        one = run_(q[0], k[0], v[0], mask[:1])
        torch.testing.assert_close(one, flat[0])


def test_an_output_has_the_dtype_that_the_call_gives_it() -> None:
    spec = ArgSpec("wide", {"M": 3, "D": 8}, {"x": "bf16", "weight": "bf16", "y": "fp32"}, {}, ("weight",))
    call = synthesize(OPS["rms_norm"], spec)
    (y,) = compute(KERNELS["reference.rms_norm"], call)
    assert y.dtype == torch.float32
    assert_close(call, [y], exact(OPS["rms_norm"], spec, None), "rms_norm")


def test_quantization_rounds_to_the_nearest_code_with_ties_to_even() -> None:
    spec = ArgSpec("ties", {"M": 1, "K": 5, "S": 1, "G": 1}, {"x": "fp32", "codes": "int8"},
                   {"format": "int8", "granularity": "tensor"}, ("scale",))  # fmt: skip
    call = synthesize(OPS["quantize_activation"], spec)
    call.inputs["x"][:] = torch.tensor([0.5, 1.5, 2.5, -0.5, 1000.0])
    call.inputs["scale"][:] = 1.0
    codes, scales = compute(KERNELS["reference.quantize_activation"], call)
    assert codes.tolist() == [[0, 2, 2, 0, 127]]
    assert scales.tolist() == [1.0]


@pytest.mark.parametrize("format", ["int8", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("granularity", ["tensor", "token", "group"])
def test_quantized_values_are_within_half_a_step(format: str, granularity: str) -> None:
    group = {"group_size": 4} if granularity == "group" else {}
    dims = {"M": 6, "K": 8, "S": 1 if granularity == "tensor" else 6, "G": 2 if group else 1}
    spec = ArgSpec(
        "step", dims, {"x": "fp32", "codes": format}, {"format": format, "granularity": granularity, **group}
    )
    call = synthesize(OPS["quantize_activation"], spec)
    call.inputs["x"][2] = 0  # a row of zeros has a scale, and codes of zero
    codes, scales = compute(KERNELS["reference.quantize_activation"], call)
    step = scales.repeat_interleave(8 // scales.shape[-1], -1) if granularity == "group" else scales
    error = (codes.float() * step - call.inputs["x"]).abs()
    mantissa = {"int8": None, "fp8_e4m3": 3, "fp8_e5m2": 2}[format]
    smallest = {"int8": 1.0, "fp8_e4m3": 2.0**-9, "fp8_e5m2": 2.0**-16}[format]  # a step near zero
    bound = torch.full_like(error, smallest / 2) * step
    if mantissa is not None:
        bound = torch.maximum(bound, call.inputs["x"].abs() * 2.0 ** -(mantissa + 1))
    assert (error <= bound * (1 + 1e-5)).all()
    assert torch.isfinite(scales).all()
    assert (scales > 0).all()


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=4),
    page_size=st.integers(1, 4),
    causal=st.booleans(),
    window=st.one_of(st.none(), st.integers(1, 4)),
    spare=st.integers(0, 2),
    seed=st.integers(0, 99),
)
def test_paged_attention_over_any_lengths(
    lengths: list[tuple[int, int]], page_size: int, causal: bool, window: int | None, spare: int, seed: int
) -> None:
    """Requests without queries or keys, spare entries, and a cache whose unused rows are not numbers."""
    pages = [-(-keys // page_size) for _, keys in lengths]
    entries, total = sum(pages), sum(queries for queries, _ in lengths)
    dims = {"B": len(lengths), "T": total, "pages": entries + 1, "page_size": page_size, "entries": max(entries, 1),
            "heads": 2, "kv_heads": 1, "head_dim": 4}  # fmt: skip
    op = OPS["attention_paged"]
    call = synthesize(op, ArgSpec("any", dims, {}, {"causal": causal, "window": window}), dtype="fp32", seed=seed)
    order = torch.randperm(entries + 1, generator=torch.Generator().manual_seed(seed))[:entries]
    call.metadata.update(
        cu_seqlens_q=_boundaries([queries for queries, _ in lengths]),
        kv_indptr=_boundaries(pages),
        kv_indices=torch.cat((order, torch.full((spare,), 2**30))).int(),
        last_page_len=torch.tensor([(keys - 1) % page_size + 1 for _, keys in lengths], dtype=torch.int32),
    )
    from harness import oracle
    from oracles import attention_paged

    want = oracle(attention_paged, call)
    used = torch.zeros(entries + 1, page_size, dtype=torch.bool)
    at = 0
    for (_, keys), count in zip(lengths, pages, strict=True):
        for j in range(keys):
            used[order[at + j // page_size], j % page_size] = True
        at += count
    for name in ("k_cache", "v_cache"):
        call.inputs[name][~used] = torch.nan
    got = compute(KERNELS["reference.attention_paged"], call)
    np.testing.assert_allclose(got[0].double().numpy(), want[0], rtol=1e-5, atol=1e-5)


def _boundaries(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


def test_new_metadata_in_the_same_buffers_need_no_new_state() -> None:
    """What a replayed graph does: the state of the first plan, other lengths in the engine's buffers."""
    op = OPS["attention_paged"]
    spec = next(spec for spec in op.arg_specs if spec.name == "small.slab.fp32")
    call = synthesize(op, spec)
    prepared = prepare(KERNELS["reference.attention_paged"], call)
    state = prepared.plan(call.metadata)
    call.metadata["last_page_len"].copy_(torch.tensor([2, 3]))
    from harness import oracle
    from oracles import attention_paged

    got = prepared.run(*call.inputs.values(), state=state)
    assert_close(call, [got], oracle(attention_paged, call), "reference.attention_paged")
