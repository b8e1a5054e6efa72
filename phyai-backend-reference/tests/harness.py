"""Calling kernels in tests: from an argument spec to numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import torch
from phyai.facts import Facts
from phyai.kernel import Kernel, Prepared
from phyai.op import ArgSpec, Op
from phyai.ops import CORE_OPS
from phyai.synthesize import SynthesizedCall, synthesize
from phyai_backend_reference.plugin import phyai_kernels
from phyai_backend_reference.rows import reference

OPS: Mapping[str, Op] = {op.name: op for op in CORE_OPS}
KERNELS: Mapping[str, Kernel] = {kernel.id: kernel for kernel in phyai_kernels()}
REFERENCE = reference.KERNELS  # those of quantized weights have tests of their own
TORCH = [kernel for kernel in KERNELS.values() if kernel.backend == "torch"]
DEVICE = {"device.type": "cpu", "lib.torch": torch.__version__}
SMALL = "small."


def small_calls(op: Op, dtypes: tuple[str | None, ...] = (None,)) -> Iterator[tuple[ArgSpec, str | None]]:
    """The op's small argument specs, each as it is (None) or with another dtype."""
    return ((spec, dtype) for spec in op.arg_specs if spec.name.startswith(SMALL) for dtype in dtypes)


def eligible(kernel: Kernel, call: SynthesizedCall, extra: Mapping[str, Any] = DEVICE) -> bool:
    return kernel.when.holds(call.facts(extra))


def prepare(kernel: Kernel, call: SynthesizedCall, extra: Mapping[str, Any] = DEVICE) -> Prepared:
    return kernel.load()(call.facts(extra), call.weights, {}, None)  # type: ignore[arg-type]


def run(prepared: Prepared, call: SynthesizedCall, out: Any = None) -> list[torch.Tensor]:
    """The outputs of a call, then its mutated inputs."""
    state = prepared.plan(call.metadata) if prepared.plan else None
    result = prepared.run(*call.inputs.values(), out=out, state=state)
    outputs = list(result) if isinstance(result, tuple) else [] if result is None else [result]
    mutated = [call.inputs[t.name] for t in call.op.inputs if t.mutated and call.inputs[t.name] is not None]
    return [*outputs, *mutated]


def compute(kernel: Kernel, call: SynthesizedCall, extra: Mapping[str, Any] = DEVICE) -> list[torch.Tensor]:
    return run(prepare(kernel, call, extra), call)


def result_names(call: SynthesizedCall) -> list[str]:
    mutated = [t.name for t in call.op.inputs if t.mutated and call.inputs[t.name] is not None]
    return [*(t.name for t in call.op.outputs), *mutated]


def exact(op: Op, spec: ArgSpec, dtype: str | None, seed: int = 0) -> list[np.ndarray]:
    """What the oracle computes in float64 from the very same, already rounded, inputs."""
    import oracles

    call = synthesize(op, spec, dtype=dtype, seed=seed)
    return oracle(getattr(oracles, op.name), call)


def oracle(function: Callable[..., list[np.ndarray]], call: SynthesizedCall) -> list[np.ndarray]:
    given = [{n: as_array(t) for n, t in tensors.items()} for tensors in (call.inputs, call.weights, call.metadata)]
    return function(*given, dict(call.attrs))


def as_array(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    return (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()


def assert_close(call: SynthesizedCall, got: list[torch.Tensor], want: list[np.ndarray], what: str) -> None:
    """Every result that is a number is within the op's tolerance for its dtype."""
    for name, g, w in zip(result_names(call), got, want, strict=True):
        tolerance = call.op.tolerance.get(call.dtypes[name])
        assert tuple(g.shape) == w.shape, f"{what}: {name} has shape {tuple(g.shape)}, not {w.shape}"
        if tolerance is None:
            continue
        difference = np.abs(as_array(g) - w)
        assert (difference <= tolerance.atol + tolerance.rtol * np.abs(w)).all(), f"{what}: {name} {difference.max()}"
        assert np.linalg.norm(difference) <= tolerance.relative_norm * np.linalg.norm(w) + 1e-300, f"{what}: {name}"


def with_facts(call: SynthesizedCall, changes: Mapping[str, Any]) -> Facts:
    return call.facts(DEVICE).replace(changes)


def with_inputs(call: SynthesizedCall, change: Callable[[torch.Tensor], torch.Tensor]) -> SynthesizedCall:
    """The same call with every floating input changed in form (strides), not in value."""
    inputs = {name: change(t) if t is not None and t.is_floating_point() else t for name, t in call.inputs.items()}
    return attrs.evolve(call, inputs=inputs)
