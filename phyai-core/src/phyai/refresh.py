"""Taking new weights in the memory of the old ones, so that prepared kernels and captured graphs stay valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from phyai.quant.weight import QuantizedWeight


def in_place(weights: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
    """The ``refresh`` of a kernel that reads ``weights`` where they lie; those that are None stay so.

    The call site has checked the names and shapes of what it is given.

    >>> import torch
    >>> weight = torch.zeros(2)
    >>> in_place({"weight": weight, "bias": None})({"weight": torch.ones(2), "bias": None})
    >>> weight
    tensor([1., 1.])
    """

    def refresh(new: Mapping[str, Any]) -> None:
        for name, held in weights.items():
            renewed(held, new.get(name))

    return refresh


def renewed(old: Any, new: Any) -> Any:
    """``old`` with the values of ``new``, in its own memory; what is no weight is replaced.

    A quantized weight's packed tensors may be what a kernel made of them, and are that kernel's to renew: those that
    ``new`` does not have are left.
    """
    if hasattr(old, "copy_"):
        return old.copy_(new)
    if not isinstance(old, QuantizedWeight):
        return new
    values = new.tensors()
    for name, tensor in old.tensors().items():
        if name in values:
            tensor.copy_(values[name])
    return old
