"""``reference.conv1d``, ``conv2d`` and ``conv3d``: a sum over the kernel's elements."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, dtype_of, give, wide


def per_axis(facts: Facts, name: str, default: int, axes: int) -> tuple[int, ...]:
    """An attribute's value for every axis; a video's time may have its own."""
    value = attribute(facts, name, default)
    return (attribute(facts, f"{name}_t", value), value, value) if axes == 3 else (value,) * axes


@frozen
class Steps:
    """How a kernel goes over its input: by axis, and the groups of channels that do not mix."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, facts: Facts, axes: int) -> Steps:
        """As a call over so many axes has them."""
        stride, padding, dilation = (
            per_axis(facts, name, default, axes) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))
        )
        return cls(stride, padding, dilation, attribute(facts, "groups", 1))


def convolve(x: torch.Tensor, weight: torch.Tensor, steps: Steps) -> torch.Tensor:
    """Cross-correlation of ``[B, C, ...]`` with ``[O, C / groups, ...]``, over any number of axes."""
    kernel, stride, dilation, groups = weight.shape[2:], steps.stride, steps.dilation, steps.groups
    x = F.pad(x, [p for pad in reversed(steps.padding) for p in (pad, pad)])
    sizes = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)]
    x = x.unflatten(1, (groups, -1))
    weight = weight.unflatten(0, (groups, -1))
    y = x.new_zeros(x.shape[0], groups, weight.shape[1], *sizes)
    every = (slice(None),) * 3
    for offsets in itertools.product(*map(range, kernel)):
        window = [
            slice(i * d, i * d + s * (n - 1) + 1, s)
            for i, d, s, n in zip(offsets, dilation, stride, sizes, strict=True)
        ]
        element: tuple[slice | int, ...] = (*every, *offsets)
        y += torch.einsum("bgc...,goc->bgo...", x[(*every, *window)], weight[element])
    return y.flatten(1, 2)


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    axes = weight.dim() - 2
    steps = Steps.of(facts, axes)
    dtype = dtype_of(facts, "y")

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        x32, w, b = wide(x, weight, bias)
        y = convolve(x32, w, steps)
        return give(y if b is None else y + b.reshape(-1, *(1 for _ in range(axes))), dtype, out)

    return Prepared(run, refresh=in_place(weights))
