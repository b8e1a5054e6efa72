"""Every Triton row in every form of memory: gaps between rows, offsets, swapped dimensions, every second element.

Without a GPU the kernels run under Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import pytest
import torch
from machine import DEVICE, ON_GPU, Resources
from phyai.environment import Environment
from phyai.kernel import Kernel
from phyai.op import ArgSpec
from phyai.ops import CORE_OPS
from phyai.synthesize import torch_dtype
from phyai.testing.bench import Call, make_call
from phyai.testing.case import MEMORY, Case
from phyai.testing.memory import place
from phyai_backend_cuda.records.triton_rows import KERNELS

pytest.importorskip("triton", reason="triton is not installed")
pytestmark = [pytest.mark.gpu] if ON_GPU else []

ROWS: Mapping[str, Kernel] = {k.id: k for k in KERNELS if isinstance(k.prepare, str) and ".triton_rows." in k.prepare}
OPS = {op.name: op for op in CORE_OPS}
ENVIRONMENT = attrs.evolve(Environment.simulated("h200", libraries=()), libraries={"triton": "3.6.0"})

_CACHE = {"pages": 3, "page_size": 4, "kv_heads": 2, "head_dim": 20}
_PROJECTION = {"heads": 4, "kv_heads": 2, "head_dim": 20}
#: One call of every row, with all its optional tensors.
CALLS: Mapping[str, ArgSpec] = {
    "rms_norm": ArgSpec("", {"M": 6, "D": 72}, {}, {"offset": 1}, ("weight",)),
    "rms_norm_add": ArgSpec("", {"M": 6, "D": 72}),
    "ada_rms_norm": ArgSpec("", {"M": 6, "R": 2, "D": 40}),
    "layer_norm": ArgSpec("", {"M": 6, "D": 72}, {}, {}, ("weight", "bias")),
    "layer_norm_add": ArgSpec("", {"M": 6, "D": 72}, {}, {}, ("weight", "bias")),
    "gated_residual": ArgSpec("", {"M": 6, "R": 2, "D": 40}),
    "gated_activation": ArgSpec("", {"M": 3, "I": 1100}, {}, {"activation": "gelu_tanh"}),
    "embedding": ArgSpec("", {"M": 6, "V": 11, "D": 40}, {}, {"scale": 3.0}),
    "rope": ArgSpec("", {"M": 6, "P": 6, "max_position": 9, "rotary_dim": 12, **_PROJECTION}),
    "kv_write": ArgSpec("", {"T": 7, **_CACHE}),
    "qkv_rope_kv_write": ArgSpec(
        "", {"T": 7, "K": 24, "N": 160, "max_position": 9, "rotary_dim": 12, **_PROJECTION, **_CACHE}, {}, _PROJECTION,
        ("bias",),
    ),
    "patch_embedding": ArgSpec(
        "", {"B": 2, "C": 3, "height": 13, "width": 9, "patches": 6, "O": 40, "patch": 4}, {"x": "fp16"}, {}, ("bias",),
    ),
    "gemm": ArgSpec("", {"M": 6, "N": 40, "K": 256}, {"x": "fp16"}, {}, ("bias",)),  # the interpreter cannot bf16's
}  # fmt: skip


def compute(kernel: Kernel, call: Call, outputs: tuple[torch.Tensor, ...] | None = None) -> list[torch.Tensor]:
    """The outputs, then the mutated inputs, of a call that the row claims."""
    facts = call.case.call_facts(call.op, ENVIRONMENT.facts())
    assert facts is not None
    assert kernel.when.why_not(facts) is None
    prepared = kernel.load()(facts, call.weights, {}, Resources())  # type: ignore[arg-type]
    out = None if not outputs else outputs[0] if len(outputs) == 1 else outputs
    result = prepared.run(*call.inputs.values(), out=out)
    returned = [] if result is None else list(result) if isinstance(result, tuple) else [result]
    assert outputs is None or all(r is o for r, o in zip(returned, outputs, strict=True))
    return [*returned, *(call.inputs[name] for name in call.mutated)]


def only_its_own_was_written(tensor: torch.Tensor) -> bool:
    """Whether the NaNs around a tensor that the kit placed are still there."""
    storage = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    inside = torch.zeros_like(storage, dtype=torch.bool)
    inside.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(True)
    return bool(storage[~inside].isnan().all())


def test_every_triton_row_has_a_call() -> None:
    assert {kernel.op for kernel in ROWS.values()} == set(CALLS)


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("id", ROWS)
def test_the_form_of_memory_does_not_matter(id: str, memory: str) -> None:
    kernel = ROWS[id]
    op = OPS[kernel.op]
    case = Case.of(op, CALLS[op.name])
    want = compute(kernel, make_call(op, case, DEVICE))

    call = make_call(op, attrs.evolve(case, memory=memory), DEVICE)
    placed = [
        place(tuple(w.shape), torch_dtype(case.dtypes[t.name]), DEVICE, memory)
        for t, w in zip(op.outputs, want, strict=False)
    ]
    got = compute(kernel, call, tuple(p.tensor for p in placed))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-2, atol=1e-2)
    assert not any(p.overrun() for p in placed)
    assert all(only_its_own_was_written(call.inputs[name]) for name in call.mutated)


@pytest.mark.parametrize("memory", ["dense", "strided"])
@pytest.mark.parametrize("id", [id for id, kernel in ROWS.items() if OPS[kernel.op].weights])
def test_new_weights_reach_a_row_that_copied_its_own(id: str, memory: str) -> None:
    kernel = ROWS[id]
    op = OPS[kernel.op]
    case = attrs.evolve(Case.of(op, CALLS[op.name]), memory=memory)
    call, other = make_call(op, case, DEVICE), make_call(op, case, DEVICE, seed=1)
    want = compute(kernel, attrs.evolve(call.copy(), weights=other.weights))
    prepared = kernel.load()(case.call_facts(op, ENVIRONMENT.facts()), call.weights, {}, Resources())  # type: ignore[arg-type]
    assert prepared.refresh is not None
    prepared.refresh(other.weights)
    result = prepared.run(*call.inputs.values())
    assert all(
        torch.equal(g, w) for g, w in zip(result if isinstance(result, tuple) else (result,), want, strict=False)
    )


@pytest.mark.parametrize("rows", [0, 3])
def test_conditions_without_rows_have_gates_all_the_same(rows: int) -> None:
    op = OPS["ada_rms_norm"]
    call = make_call(op, Case.of(op, ArgSpec("", {"M": rows, "R": 1, "D": 24})), DEVICE)
    y, gate = compute(ROWS["cuda.ada_rms_norm"], call)
    assert y.shape == (rows, 24)
    assert torch.equal(gate, call.inputs["modulation"][:, 48:])


def test_keys_that_are_part_of_a_projection_are_rotated_where_they_are() -> None:
    """As the chain of qkv_rope_kv_write calls it: k_out is k, a view with gaps between its rows."""
    op = OPS["rope"]
    call = make_call(op, Case.of(op, CALLS["rope"]), DEVICE)
    _, want = compute(ROWS["cuda.rope"], call)
    qkv = torch.cat([call.inputs["q"], call.inputs["k"], call.inputs["k"]], dim=1)
    k, v = qkv[:, 4:6], qkv[:, 6:].clone()
    split = attrs.evolve(call, inputs={**call.inputs, "q": qkv[:, :4], "k": k})
    _, got = compute(ROWS["cuda.rope"], split, (torch.empty_like(call.inputs["q"]), k))
    assert torch.equal(got, want)
    assert torch.equal(qkv[:, 6:], v)
