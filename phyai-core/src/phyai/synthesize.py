"""Tensors for a call, made from an op's signature and one of its argument specs.

What tests, benchmarks, tuning and conformance feed to kernels. The same seed gives the same values on any
device, because they are drawn on the CPU.

>>> from phyai.ops.rms_norm import OP
>>> spec = next(spec for spec in OP.arg_specs if spec.name == "small.odd")
>>> call = synthesize(OP, spec, dtype="fp32")
>>> {name: tuple(tensor.shape) for name, tensor in (call.inputs | call.weights).items()}
{'x': (5, 7), 'weight': (7,)}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from phyai.calls import attributes, call_facts, fill_dtypes
from phyai.dims import dim_size
from phyai.errors import CallError
from phyai.facts import Facts
from phyai.op import FLOATS, ArgSpec, Op, Tensor
from phyai.targets import load as load_target

if TYPE_CHECKING:
    import torch


@frozen
class SynthesizedCall:
    """The tensors and attributes of one call. ``inputs`` has every input in signature order, None where absent."""

    op: Op
    spec: ArgSpec
    dtypes: Mapping[str, str]
    attrs: Mapping[str, Any]
    inputs: dict[str, Any] = field(factory=dict)
    weights: dict[str, Any] = field(factory=dict)
    metadata: dict[str, Any] = field(factory=dict)

    def facts(self, extra: Mapping[str, Any] | None = None) -> Facts:
        """The call's facts, with those of its spec and ``extra`` (``device.*``, ``lib.*``)."""
        return call_facts(
            self.op,
            dims=self.spec.dims,
            dtypes=self.dtypes,
            attrs=self.attrs,
            present=self.spec.present,
            extra={**self.spec.facts, **(extra or {})},
        )


def synthesize(
    op: Op, spec: ArgSpec, *, dtype: str | None = None, device: str = "cpu", seed: int = 0
) -> SynthesizedCall:
    """Every tensor of a call of ``op`` with the dimensions, dtypes and attributes of ``spec``.

    ``dtype`` replaces the dtype of every tensor of the spec that is a plain float and may have it.

    Raises:
        CallError: the spec leaves a dimension out, or names what the signature does not have.
    """
    import torch

    call = SynthesizedCall(op, spec, _dtypes(op, spec, dtype), attributes(op, spec.attrs))
    generator = torch.Generator().manual_seed(seed)
    kinds = {"input": call.inputs, "weight": call.weights, "metadata": call.metadata}
    for tensor in op.tensors:
        if tensor.kind == "output":
            continue
        if tensor.name in call.dtypes:
            kinds[tensor.kind][tensor.name] = _draw(tensor, call, generator)
        elif tensor.kind == "input":
            kinds["input"][tensor.name] = None
    if op.synthesize is not None:
        load_target(op.synthesize)(call, generator)
    for tensors in kinds.values():
        for name, value in tensors.items():
            tensors[name] = value if value is None else value.to(device)
    return call


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype for a canonical name.

    Raises:
        CallError: torch has no such dtype.
    """
    import torch

    spelled = {"bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(name)
    found = getattr(torch, spelled or name.replace("fp", "float"), None)
    if not isinstance(found, torch.dtype):
        raise CallError(f"torch has no dtype {name!r}")
    return found


def _dtypes(op: Op, spec: ArgSpec, dtype: str | None) -> dict[str, str]:
    first = op.inputs[0].dtypes[0] if op.inputs[0].dtypes[0] in FLOATS else "bf16"
    given = {next(t.name for t in op.tensors if first in t.dtypes): first} | dict(spec.dtypes)
    filled = fill_dtypes(op, given, spec.present)
    optional = {t.name for t in op.tensors if t.optional and t.name not in spec.present}
    filled = {name: value for name, value in filled.items() if name not in optional}
    if dtype is not None:
        allowed = {t.name: t.dtypes for t in op.tensors}
        filled |= {n: dtype for n, value in filled.items() if value in FLOATS and dtype in allowed[n]}
    return filled


def _shape(tensor: Tensor, dims: Mapping[str, int]) -> tuple[int, ...]:
    try:
        return tuple(dim_size(dim, dims) for dim in tensor.dims)
    except KeyError as missing:
        raise CallError(f"the argument spec gives no {missing.args[0]}, which {tensor.name} needs") from None


def _draw(tensor: Tensor, call: SynthesizedCall, generator: torch.Generator) -> torch.Tensor:
    shape = _shape(tensor, call.spec.dims)
    dtype = torch_dtype(call.dtypes[tensor.name])
    if tensor.kind == "weight" and tensor.fill == "normal" and len(shape) > 1:
        import torch

        # outputs of matrix products come out near 1, whatever the size of what they sum over
        return (torch.randn(shape, generator=generator) / math.sqrt(math.prod(shape[1:]))).to(dtype)
    return _FILLS[tensor.fill](shape, call.spec.dims, generator).to(dtype)


_Fill = Callable[[tuple[int, ...], Mapping[str, int], Any], "torch.Tensor"]


def _normal(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=generator)


def _uniform(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    import torch

    return torch.rand(shape, generator=generator)


def _zeros(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    import torch

    return torch.zeros(shape)


def _ones(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    import torch

    return torch.ones(shape)


def _near_one(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    import torch

    return 1 + 0.1 * torch.randn(shape, generator=generator)


def _mask(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    """Three in four kept, and the first of every row, so that no row is empty."""
    import torch

    mask = torch.rand(shape, generator=generator) < 0.75
    mask[..., :1] = True
    return mask


def _positions(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    import torch

    return torch.randint(0, dims["max_position"], shape, generator=generator)


def _ids(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    import torch

    return torch.randint(0, dims["V"], shape, generator=generator)


def _slots(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    """Distinct slots of the cache, in no order."""
    import torch

    return torch.randperm(dims["pages"] * dims["page_size"], generator=generator)[: shape[0]]


def _scale(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    """A static scale that clips a few of a normal tensor's elements as int8, none as fp8."""
    import torch

    return torch.full(shape, 2.5 / 127)


def _cos_sin(shape: tuple[int, ...], dims: Mapping[str, int], generator: Any) -> torch.Tensor:
    """Cosines, then sines, of ``position / 10000 ** (i / (rotary_dim / 2))``."""
    import torch

    positions, rotary_dim = shape
    half = rotary_dim // 2
    angle = torch.arange(positions)[:, None].double() / 10000.0 ** (torch.arange(half).double() / half)
    return torch.cat((angle.cos(), angle.sin()), dim=1)


_FILLS: Mapping[str, _Fill] = {
    "normal": _normal,
    "uniform": _uniform,
    "zeros": _zeros,
    "ones": _ones,
    "near_one": _near_one,
    "mask": _mask,
    "positions": _positions,
    "ids": _ids,
    "slots": _slots,
    "scale": _scale,
    "cos_sin": _cos_sin,
}
