"""What the reference kernels share: computing wide, and rounding once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from phyai.errors import CallError
from phyai.facts import Facts, whole

DTYPES: Mapping[str, torch.dtype] = {
    "fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
    "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip

T = TypeVar("T")


def wide(*tensors: Any) -> Any:
    """The tensors in the dtype that reference kernels compute in: fp64 if one of them has it, else fp32.

    None stays None. One tensor comes back as itself, several as a tuple.
    """
    dtype = torch.float64 if any(t is not None and t.dtype == torch.float64 for t in tensors) else torch.float32
    cast = tuple(None if t is None else t.to(dtype) for t in tensors)
    return cast if len(tensors) > 1 else cast[0]


def give(result: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None) -> torch.Tensor:
    """``result`` rounded to ``dtype``, written to ``out`` when there is one."""
    return result.to(dtype) if out is None else out.copy_(result)


def dtype_of(facts: Facts, tensor: str) -> torch.dtype:
    """The dtype that the call gives a tensor; outputs are rounded to theirs."""
    return DTYPES[str(facts[f"dtype.{tensor}"])]


def size(facts: Facts, dim: str) -> int:
    """A dimension of the call."""
    return whole(facts, f"shape.{dim}")


def attribute(facts: Facts, name: str, default: T) -> T:
    """An attribute of the call; ``default`` where it is absent."""
    return facts.get(f"attrs.{name}", default)  # type: ignore[return-value]


def by_group(x: torch.Tensor, groups: int) -> torch.Tensor:
    """``x`` as ``[groups, rows per group, D]``: what one row each of a condition applies to.

    Raises:
        CallError: the rows of the condition do not divide those of x.
    """
    size = x.shape[-1]
    rows = x.numel() // size
    if rows % groups if groups else rows:
        raise CallError(f"x has {rows} rows, which {groups} rows of the condition do not divide")
    return x.reshape(groups, rows // groups if groups else 0, size)
