"""Symbolic shapes: what the dimensions of a signature's tensors are called, and how large they are.

A symbolic shape is a tuple of dimension names. One name may start with ``...``: it stands for any
number of dimensions, and its value is their product: ``("...M", "K")`` of a ``(2, 25, 64)`` tensor gives
M = 50 and K = 64. A dimension may also be a literal (``"3"``) or a size that follows from a name
(``"3*D"``, ``"B+1"``, ``"K-1"``).

>>> from phyai.op import Tensor
>>> x = Tensor("x", ("...M", "K"), "input")
>>> bind_dims((x,), {"x": (2, 25, 64)})
{'M': 50, 'K': 64}
>>> bind_dims((Tensor("modulation", ("...R", "3*D")),), {"modulation": (4, 96)})
{'R': 4, 'D': 32}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from phyai.errors import CallError, DeclarationError
from phyai.op import Tensor

_DIM = re.compile(r"(?:(?P<factor>\d+)\*)?(?P<name>[A-Za-z_]\w*)(?P<shift>[+-]\d+)?")


def _parse_dim(dim: str) -> tuple[int, str, int]:
    """``factor, name, shift`` of a dimension whose size is ``factor * name + shift``."""
    found = _DIM.fullmatch(dim.removeprefix("..."))
    if found is None:
        raise DeclarationError(f"dimension {dim!r} must read like M, ...M, 3, 3*D, B+1 or K-1")
    return int(found["factor"] or 1), found["name"], int(found["shift"] or 0)


def dim_names(tensor: Tensor) -> tuple[str, ...]:
    """The named dimensions that a tensor's shape shows.

    >>> dim_names(Tensor("weight", ("3*D", "K", "4")))
    ('D', 'K')
    """
    return tuple(_parse_dim(dim)[1] for dim in tensor.dims if not dim.isdigit())


def dim_size(dim: str, dims: Mapping[str, int]) -> int:
    """The size of one symbolic dimension, from the values of the named ones.

    >>> dim_size("3*D", {"D": 32}), dim_size("B+1", {"B": 4}), dim_size("...M", {"M": 50}), dim_size("3", {})
    (96, 5, 50, 3)
    """
    if dim.isdigit():
        return int(dim)
    factor, name, shift = _parse_dim(dim)
    return factor * dims[name] + shift


def bind_dims(tensors: Iterable[Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The value of every symbolic dimension, from the shapes of the tensors that are present.

    Raises:
        CallError: a tensor has the wrong number of dimensions, or two tensors disagree on one.
    """
    dims: dict[str, int] = {}
    for tensor in tensors:
        shape = shapes.get(tensor.name)
        if shape is None:
            continue
        for dim, size in _pair(tensor, tuple(shape)):
            if dim.isdigit():  # a literal size
                if int(dim) != size:
                    raise CallError(f"{_shown(tensor, shape)} asks for {dim} there")
                continue
            factor, name, shift = _parse_dim(dim)
            value, rest = divmod(size - shift, factor)
            if rest:
                raise CallError(f"{_shown(tensor, shape)} asks for a multiple of {factor} at {dim}, not {size}")
            if dims.setdefault(name, value) != value:
                raise CallError(
                    f"{_shown(tensor, shape)} makes {name}={value}, but {name}={dims[name]} by the tensors before it"
                )
    return dims


def _shown(tensor: Tensor, shape: Sequence[int]) -> str:
    return f"{tensor.name} has shape {tuple(shape)}, which for ({' '.join(tensor.dims)})"


def _pair(tensor: Tensor, shape: tuple[int, ...]) -> list[tuple[str, int]]:
    """Each symbolic dimension of ``tensor`` with its size; a ``...`` one with the product of its sizes."""
    names = tensor.dims
    at = next((i for i, name in enumerate(names) if name.startswith("...")), None)
    if len(shape) < len(names) - (at is not None) or (at is None and len(shape) != len(names)):
        raise CallError(f"{tensor.name} has shape {shape}; the signature asks for ({' '.join(names)})")
    if at is None:
        return list(zip(names, shape, strict=True))
    tail = len(shape) - (len(names) - at - 1)
    variadic = (names[at], math.prod(shape[at:tail]))
    return [*zip(names, shape[:at], strict=False), variadic, *zip(names[at + 1 :], shape[tail:], strict=True)]
