"""The same kernels on a GPU: against the oracle, captured in a CUDA graph, and replayed with new inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import OPS, REFERENCE, TORCH, assert_close, compute, eligible, exact, prepare, run, small_calls
from phyai.environment import Environment
from phyai.kernel import Capture, Kernel
from phyai.op import ArgSpec
from phyai.synthesize import SynthesizedCall, synthesize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch sees none"),
]

UNQUANTIZED = [kernel for kernel in (*REFERENCE, *TORCH) if "fp8" not in kernel.id]
DTYPES = (None, "bf16", "fp16", "fp32", "fp64")
#: Shapes of real models that an oracle in Python cannot compute: these are held against the reference in float64.
REAL = [
    ("attention", "pi05.vision"), ("attention", "pi05.prefix"), ("attention", "pi05.prefix.masked"),
    ("attention", "pi05.expert"), ("attention", "cosmos3.und"), ("attention", "cosmos3.gen.ragged"),
    ("attention_paged", "pi05.prefix"), ("attention_paged", "pi05.prefix.b2"), ("attention_paged", "pi05.expert"),
    ("attention_paged", "pi05.expert.b8"), ("gemm", "pi05.expert.down"), ("gemm", "pi05.vision.up"),
    ("conv2d", "pi05.vision.patch"), ("rms_norm", "cosmos3.gen.qk"), ("layer_norm", "pi05.vision"),
]  # fmt: skip


def device_facts() -> dict[str, Any]:
    return dict(Environment.detect("cuda").facts())


def on_gpu(op: str, spec: ArgSpec, dtype: str | None = None, seed: int = 0) -> SynthesizedCall:
    return synthesize(OPS[op], spec, dtype=dtype, device="cuda", seed=seed)


@pytest.mark.parametrize("kernel", UNQUANTIZED, ids=lambda kernel: kernel.id)
def test_equals_the_oracle(kernel: Kernel) -> None:
    ran = 0
    for spec, dtype in small_calls(OPS[kernel.op], DTYPES):
        call = on_gpu(kernel.op, spec, dtype)
        if eligible(kernel, call, device_facts()):
            what = f"{kernel.id} {spec.name} {dtype}"
            assert_close(call, compute(kernel, call, device_facts()), exact(OPS[kernel.op], spec, dtype), what)
            ran += 1
    assert ran


@pytest.mark.parametrize(("op", "name"), REAL)
def test_equals_the_reference_at_real_shapes(op: str, name: str) -> None:
    spec = next(spec for spec in OPS[op].arg_specs if spec.name == name)
    reference = next(kernel for kernel in REFERENCE if kernel.op == op)
    want = [t.cpu().double().numpy() for t in compute(reference, _widened(on_gpu(op, spec)), device_facts())]
    ran = []
    for kernel in UNQUANTIZED:
        call = on_gpu(op, spec)
        if kernel.op == op and eligible(kernel, call, device_facts()):
            assert_close(call, compute(kernel, call, device_facts()), want, f"{kernel.id} {name}")
            ran.append(kernel.id)
    assert len(ran) > 1


def _widened(call: SynthesizedCall) -> SynthesizedCall:
    """The same values in float64."""
    for tensors in (call.inputs, call.weights):
        tensors.update({n: t.double() for n, t in tensors.items() if t is not None and t.is_floating_point()})
    call.dtypes.update({n: "fp64" for n, d in call.dtypes.items() if d in ("bf16", "fp16", "fp32")})  # type: ignore[attr-defined]
    return call


@pytest.mark.parametrize("kernel", UNQUANTIZED, ids=lambda kernel: kernel.id)
def test_is_captured_and_replayed_with_new_inputs(kernel: Kernel) -> None:
    assert kernel.capture is not Capture.NEVER
    facts = {**device_facts(), "mode.capture": True}
    op = OPS[kernel.op]
    candidates = [(s, d) for s, d in small_calls(op, DTYPES) if eligible(kernel, on_gpu(op.name, s, d), facts)]
    spec, dtype = candidates[-1]
    call = on_gpu(op.name, spec, dtype)
    prepared = prepare(kernel, call, facts)
    state = prepared.plan(call.metadata) if prepared.plan else None
    if kernel.capture is Capture.AFTER_WARMUP:
        prepared.run(*on_gpu(op.name, spec, dtype).inputs.values(), state=state)
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = prepared.run(*call.inputs.values(), state=state)
    for name, new in on_gpu(op.name, spec, dtype, seed=1).inputs.items():
        if new is not None:
            call.inputs[name].copy_(new)
    graph.replay()
    outputs = list(result) if isinstance(result, tuple) else [] if result is None else [result]
    mutated = [call.inputs[t.name] for t in op.inputs if t.mutated and call.inputs[t.name] is not None]
    fresh = on_gpu(op.name, spec, dtype, seed=1)
    fresh.weights.update(call.weights)
    fresh.metadata.update(call.metadata)
    want = [t.cpu().double().numpy() for t in run(prepare(kernel, fresh, facts), fresh)]
    assert_close(call, [*outputs, *mutated], want, kernel.id)


def test_variable_length_attention_replays_with_other_lengths() -> None:
    kernel = next(kernel for kernel in TORCH if kernel.id == "torch.attention_paged.varlen")
    op = OPS["attention_paged"]
    call = on_gpu(op.name, next(spec for spec in op.arg_specs if spec.name == "pi05.prefix.b2"))
    prepared = prepare(kernel, call, device_facts())
    state = prepared.plan(call.metadata)
    prepared.run(*call.inputs.values(), state=state)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = prepared.run(*call.inputs.values(), state=state)
    call.metadata["last_page_len"].copy_(torch.tensor([17, 300]))
    call.metadata["kv_indices"].copy_(call.metadata["kv_indices"].flip(0))
    graph.replay()
    reference = next(kernel for kernel in REFERENCE if kernel.op == op.name)
    assert_close(call, [o], [t.cpu().double().numpy() for t in compute(reference, call, device_facts())], kernel.id)


@pytest.mark.parametrize("variant", ["flash", "cudnn", "efficient", "math"])
@pytest.mark.parametrize("offset", [1, 4])
def test_attention_of_tensors_that_begin_anywhere(variant: str, offset: int) -> None:
    op, spec = OPS["attention"], ArgSpec("plain", {"B": 2, "Sq": 5, "Sk": 7, "heads": 2, "kv_heads": 2, "head_dim": 16})
    call = on_gpu("attention", spec)
    for name in "qkv":
        t = call.inputs[name]
        buffer = torch.empty(t.numel() + offset, dtype=t.dtype, device="cuda")
        call.inputs[name] = buffer[offset:].view(t.shape).copy_(t)
    kernel = next(kernel for kernel in TORCH if kernel.id == f"torch.attention.{variant}")
    assert_close(call, compute(kernel, call, device_facts()), exact(op, spec, None), kernel.id)


@pytest.mark.parametrize("id", ["torch.attention.flash", "torch.attention.cudnn", "torch.attention.efficient"])
def test_what_is_refused_on_a_gpu_fails(id: str) -> None:
    kernel = next(kernel for kernel in TORCH if kernel.id == id)
    spec = ArgSpec("odd", {"B": 1, "Sq": 5, "Sk": 6, "heads": 2, "kv_heads": 2, "head_dim": 20})
    call = on_gpu("attention", spec)
    assert "shape.head_dim=20 is not a multiple of 8" in (kernel.when.why_not(call.facts(device_facts())) or "")
    with pytest.raises(RuntimeError):
        compute(kernel, call, device_facts())


@pytest.mark.parametrize("id", ["torch.gemm.fp8_tensor", "torch.gemm.fp8_channel"])
def test_fp8_equals_the_reference(id: str) -> None:
    from test_torch_rows import fp8_call, fp8_facts

    granularities = ("tensor", "tensor") if id.endswith("tensor") else ("channel", "token")
    weight, x, bias = fp8_call(*granularities, dynamic=True, m=50, n=1024, k=2048)
    weight, x, bias = weight.to("cuda"), x.cuda(), bias.cuda()
    facts = fp8_facts(weight, device_facts())
    kernels = {kernel.id: kernel for kernel in TORCH}
    assert kernels[id].when.holds(facts)
    from harness import KERNELS

    weights = {"weight": weight, "bias": bias}
    got, want = (
        k.load()(facts, weights, {}, None).run(x)  # type: ignore[arg-type]
        for k in (kernels[id], KERNELS["reference.gemm.quantized_input"])
    )
    torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2)
