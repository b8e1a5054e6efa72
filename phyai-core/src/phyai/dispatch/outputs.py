"""Whether the ``out`` of a call is what the op says of its outputs.

Kernels write to the memory that ``out`` names without asking for its size, so this is asked before they run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from phyai.calls import checked
from phyai.dims import bind_dims, dim_names, dim_size
from phyai.dispatch.reader import dtype_name
from phyai.errors import CallError
from phyai.facts import Facts
from phyai.op import ArgSpec, Op, Tensor

#: The size of a dimension that is not known: no op's ``fit`` comes to it by itself.
_UNKNOWN = (1 << 31) - 1


class Outputs:
    """What fits as ``out`` of one site's calls.

    Sizes follow from the inputs and from what the site was bound to; those that only outputs show (a convolution's
    length), and dtypes of codes, from the op's ``fit``. A size that follows from neither is as ``out`` has it, if the
    op does not contradict.
    """

    def __init__(self, op: Op, site: str, present: Sequence[Tensor]) -> None:
        self._op, self._site, self._present = op, site, present

    def check(self, facts: Facts, inputs: Sequence[Any], out: Any) -> None:
        """Refuse an ``out`` that the call with these inputs, whose facts these are, cannot write its results to.

        Raises:
            CallError: not as many tensors as the op has outputs, or one of another shape, dtype or device, or one whose
                elements share memory.
        """
        given = self._tensors(out)
        dims = {name[6:]: v for name, v in facts.items() if name.startswith("shape.") and isinstance(v, int)}
        following, dtypes = self._following(facts, dims)
        dims |= following
        leading = self._leading(inputs)
        device = next((d for t in inputs if (d := getattr(t, "device", None)) is not None), None)
        for tensor, place in zip(self._op.outputs, given, strict=True):
            shape = tuple(place.shape)
            if not _fits(tensor, shape, dims, leading):
                raise self._error(f"out has shape {shape} for {tensor.name}, which is {_words(tensor, dims, leading)}")
            want, found = dtypes.get(tensor.name), dtype_name(place)
            if want not in (None, found):
                raise self._error(f"out has dtype {found} for {tensor.name}, which is {want}")
            if _overlaps(shape, _strides(place)):
                raise self._error(f"out has strides {_strides(place)} for {tensor.name}: its elements share memory")
            where = getattr(place, "device", device)
            if device is not None and where != device:
                raise self._error(f"out lies on {where} for {tensor.name}; the inputs lie on {device}")
        shapes = {t.name: tuple(p.shape) for t, p in zip(self._op.outputs, given, strict=True)}
        try:
            shown = bind_dims(self._op.outputs, shapes)
            checked(self._op, Facts({**facts, **{f"shape.{name}": size for name, size in shown.items()}}))
        except CallError as error:
            raise self._error(f"out does not fit: {error}") from None

    def _tensors(self, out: Any) -> tuple[Any, ...]:
        outputs = self._op.outputs
        single = len(outputs) == 1
        given = (out,) if single else tuple(out) if isinstance(out, tuple | list) else None
        if given is not None and len(given) == len(outputs) and all(_is_tensor(t) for t in given):
            return given
        if not outputs:
            raise self._error(f"out is {_kind(out)}, but {self._op.name} has no outputs")
        wanted = "one tensor" if single else f"a tuple of {len(outputs)} tensors"
        raise self._error(f"out is {_kind(out)}, not {wanted} ({', '.join(t.name for t in outputs)})")

    def _following(self, facts: Facts, dims: Mapping[str, int]) -> tuple[dict[str, int], Mapping[str, str]]:
        """What the op's ``fit`` says of a call: the sizes that only outputs show, where it does not leave them as they
        were, and dtypes."""
        dtypes = {name: str(dtype) for name, dtype in facts.under("dtype").items()}
        if self._op.fit is None:
            return {}, dtypes
        unknown = {name for tensor in self._op.outputs for name in dim_names(tensor)} - set(dims)
        smallest = {d.name: max(1, d.minimum) for d in self._op.dims}
        sizes = {**smallest, **dims, **dict.fromkeys(unknown, _UNKNOWN)}
        fitted = self._op.fit(ArgSpec("call", sizes, dtypes, facts.under("attrs"), tuple(dtypes)))
        return {name: fitted.dims[name] for name in unknown if fitted.dims[name] != _UNKNOWN}, fitted.dtypes

    def _leading(self, inputs: Sequence[Any]) -> dict[str, list[tuple[int, ...]]]:
        """The sizes that every ``...`` dimension stands for in the inputs that show it."""
        found: dict[str, list[tuple[int, ...]]] = {}
        named = dict(zip((t.name for t in self._op.inputs), inputs, strict=True))
        for tensor in self._present:
            at = _variadic(tensor)
            if at is not None:
                found.setdefault(tensor.dims[at], []).append(_split(tensor, at, tuple(named[tensor.name].shape))[1])
        return found

    def _error(self, problem: str) -> CallError:
        outputs = ", ".join(f"{t.name}[{' '.join(t.dims)}]" for t in self._op.outputs) or "none"
        return CallError(
            f"{self._op.name} at site {self._site}: {problem}\n  outputs: {outputs}\n"
            f"  give an out that fits, or none: the call makes its own then"
        )


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _strides(place: Any) -> tuple[int, ...]:
    """How far elements lie apart; none of what does not say."""
    return tuple(place.stride()) if hasattr(place, "stride") else ()


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements lie in the same place, or so that they would if there were more of them.

    >>> _overlaps((2, 3), (0, 1)), _overlaps((2, 3), (2, 1)), _overlaps((1, 3), (0, 1)), _overlaps((3, 2), (1, 4))
    (True, True, False, False)
    """
    reach = 0
    if 0 in shape:
        return False
    for stride, size in sorted(zip(strides, shape, strict=False)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"a {name} of {len(value)}" if isinstance(value, tuple | list) else f"a {name}"


def _variadic(tensor: Tensor) -> int | None:
    return next((i for i, dim in enumerate(tensor.dims) if dim.startswith("...")), None)


def _split(tensor: Tensor, at: int, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """``shape`` before, within and after the ``...`` dimension at ``at``."""
    tail = len(shape) - (len(tensor.dims) - at - 1)
    return shape[:at], shape[at:tail], shape[tail:]


def _fits(
    tensor: Tensor,
    shape: tuple[int, ...],
    dims: Mapping[str, int],
    leading: Mapping[str, list[tuple[int, ...]]],
) -> bool:
    at = _variadic(tensor)
    if len(shape) < len(tensor.dims) - (at is not None):
        return False
    if at is not None:
        before, within, after = _split(tensor, at, shape)
        known = leading.get(tensor.dims[at])
        if known is not None and within not in known:
            return False
        shape = (*before, math.prod(within), *after)
    sizes = [_size(dim, dims) for dim in tensor.dims]
    return len(sizes) == len(shape) and all(want in (None, size) for want, size in zip(sizes, shape, strict=True))


def _size(dim: str, dims: Mapping[str, int]) -> int | None:
    try:
        return dim_size(dim, dims)
    except KeyError:
        return None


def _words(tensor: Tensor, dims: Mapping[str, int], leading: Mapping[str, list[tuple[int, ...]]]) -> str:
    """The shape that a tensor has, with the names of sizes that are not known: ``(2, 25, 8)``, ``(3, heads, 64)``."""
    parts: list[str] = []
    for dim in tensor.dims:
        size = _size(dim, dims)
        known = leading.get(dim)
        if known is not None:
            parts += map(str, known[0])
        else:
            parts.append(dim if size is None else f"...{size}" if dim.startswith("...") else str(size))
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
