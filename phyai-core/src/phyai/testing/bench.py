"""The tensors of a case, and what float64 says they give."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from phyai.op import FLOATS, Op
from phyai.quant.formats import QuantFormat
from phyai.synthesize import SynthesizedCall, synthesize, torch_dtype
from phyai.testing.case import Case, quantizable, variadic_dim
from phyai.testing.memory import move

if TYPE_CHECKING:
    import torch

_SMALL = 2.0**-10


@attrs.frozen(eq=False)
class Call:
    """A case's tensors. ``inputs`` are in signature order, None where absent; ``plain`` holds quantized weights before
    they were packed."""

    op: Op
    case: Case
    inputs: dict[str, Any]
    weights: dict[str, Any]
    metadata: dict[str, Any]
    plain: dict[str, Any] = attrs.field(factory=dict)

    @property
    def mutated(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.op.inputs if t.mutated and self.inputs[t.name] is not None)

    def copy(self) -> Call:
        """The same call with inputs of its own, in the same form."""
        return attrs.evolve(self, inputs={name: _clone(t) for name, t in self.inputs.items()})


def make_call(op: Op, case: Case, device: str, packed: QuantFormat | None = None, *, seed: int | None = None) -> Call:
    """The tensors of a case; ``packed`` brings a quantized weight into the case's layout, where that is not plain."""
    spec = case.spec()
    if case.scheme is not None:
        spec = attrs.evolve(spec, dtypes={**spec.dtypes, **dict.fromkeys(quantizable(op), "fp32")})  # quantized below
    made = synthesize(op, spec, seed=case.seed if seed is None else seed)
    _scale_values(made, case)
    plain = {} if case.scheme is None else _quantized(made, case, device)
    weights = made.weights | (plain if packed is None else {n: packed.load_pack()(w) for n, w in plain.items()})
    inputs = {name: None if t is None else _led(op, case, name, t) for name, t in made.inputs.items()}
    inputs = {name: None if t is None else move(t.to(device), case.memory) for name, t in inputs.items()}
    if case.alias:
        inputs = _aliased(op, inputs)
    weights = {name: move(t.to(device), case.memory) if hasattr(t, "stride") else t for name, t in weights.items()}
    metadata = {name: t.to(device) for name, t in made.metadata.items()}
    return Call(op, case, inputs, weights, metadata, plain)


def _scale_values(made: SynthesizedCall, case: Case) -> None:
    """Make ordinary inputs small, or zero."""
    if case.values == "normal":
        return
    factor = _SMALL if case.values == "small" else 0.0
    for tensor in made.op.inputs:
        value = made.inputs.get(tensor.name)
        if value is not None and tensor.fill == "normal" and made.dtypes[tensor.name] in FLOATS:
            made.inputs[tensor.name] = value * factor


def _led(op: Op, case: Case, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with the leading dimensions of the case."""
    dim = variadic_dim(op)
    if case.lead is None or dim is None:
        return tensor
    declared = next(t.dims for t in op.tensors if t.name == name)
    at = next((i for i, d in enumerate(declared) if d.startswith("...")), None)
    if at is not None and tensor.dim() == len(declared) + 1:  # [3, ...M]
        at += 1
    elif len(declared) != tensor.dim():
        return tensor
    if at is None or tensor.shape[at] != math.prod(case.lead):
        return tensor
    return tensor.reshape((*tensor.shape[:at], *case.lead, *tensor.shape[at + 1 :]))


def _aliased(op: Op, inputs: dict[str, Any]) -> dict[str, Any]:
    """Floating inputs of one shape and dtype as one tensor, unless the op may write to one of them."""
    found: dict[Any, Any] = {}
    aliased = dict(inputs)
    for tensor in op.inputs:
        value = inputs[tensor.name]
        written = tensor.mutated or tensor.scratch is not None
        if value is not None and not written and value.is_floating_point():
            aliased[tensor.name] = found.setdefault((tuple(value.shape), value.dtype, tensor.fill), value)
    return aliased


def _clone(tensor: Any) -> Any:
    """A copy with the same strides and offset."""
    if tensor is None:
        return None
    storage = tensor.untyped_storage().clone()
    return tensor.new_empty(0).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _quantized(made: SynthesizedCall, case: Case, device: str) -> dict[str, Any]:
    """The quantized weights, plain."""
    from phyai.testing.quantized import quantized_weight

    assert case.scheme is not None
    named = {name: made.weights[name].float() for name in quantizable(made.op)}
    return {name: quantized_weight(w, case.scheme, seed=case.seed).to(device) for name, w in named.items()}


def widened(call: Call) -> Call:
    """The call in float64 wherever its signature allows that, contiguous, with the plain weight.

    Inputs that are quantized on the way stay as they are: which of two codes a value between them gets follows from how
    its scale is rounded.
    """
    import torch

    scheme = call.case.scheme
    kept = set(call.inputs) if scheme is not None and scheme.input is not None else set()
    wider = {t.name for t in call.op.tensors if "fp64" in t.dtypes and t.name not in kept}
    dtypes = {name: "fp64" if dtype in FLOATS and name in wider else dtype for name, dtype in call.case.dtypes.items()}

    def wide(name: str, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        return tensor.to(torch_dtype(dtypes[name]), copy=True).contiguous()

    case = attrs.evolve(
        call.case, dtypes=dtypes, memory="dense", params={}, alias=False,
        layout="plain" if call.case.scheme is not None else None,
    )  # fmt: skip
    weights = {name: wide(name, tensor) for name, tensor in call.weights.items()} | call.plain
    inputs = {name: wide(name, tensor) for name, tensor in call.inputs.items()}
    return attrs.evolve(call, case=case, inputs=inputs, weights=weights)
