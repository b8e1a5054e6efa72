"""``torch.conv1d``, ``conv2d``, ``conv3d``, ``conv2d.patches`` and ``causal_conv``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, give
from phyai_backend_reference.reference.conv import Steps


def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, steps: Steps) -> torch.Tensor:
    """torch's convolution, deterministic and without TF32, whatever the process's settings are."""
    return torch.ops.aten._convolution(
        x, weight, bias, steps.stride, steps.padding, steps.dilation, False, [0] * len(steps.stride), steps.groups,
        False, True, True, False,
    )  # fmt: skip


def prepare(facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    steps = Steps.of(facts, weight.dim() - 2)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return give(convolution(x, weight, bias, steps), x.dtype, out)

    return Prepared(run, refresh=in_place(weights))


def prepare_patches(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    """Patches as rows of a matrix, then one product; without ``out`` the result lies channels last, as that gives it.

    Rows are padded to a multiple of eight elements, which is what fast products read.
    """
    weight, bias = weights["weight"], weights.get("bias")
    outputs, channels, rows, columns = weight.shape
    elements = channels * rows * columns
    width = -(-elements // 8) * 8
    matrix = F.pad(weight.flatten(1), (0, width - elements))

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        down, across = x.shape[2] // rows, x.shape[3] // columns
        whole = x[..., : down * rows, : across * columns]
        patches = whole.unflatten(3, (across, columns)).unflatten(2, (down, rows)).permute(0, 2, 4, 1, 3, 5)
        flat = x.new_empty(len(x) * down * across, width)
        flat[:, elements:].zero_()
        flat[:, :elements].view(patches.shape).copy_(patches)
        y = F.linear(flat, matrix, bias).view(len(x), down, across, outputs)
        return give(y.permute(0, 3, 1, 2), x.dtype, out)

    keep = in_place(weights)

    def refresh(new: Mapping[str, Any]) -> None:
        keep(new)
        matrix[:, :elements].copy_(weight.flatten(1))

    return Prepared(run, refresh=refresh)


def prepare_causal(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight, bias = weights["weight"], weights.get("bias")
    channels, width = weight.shape
    steps = Steps((1,), (0,), (1,), channels)
    silu = attribute(facts, "activation", None) == "silu"

    def run(
        x: torch.Tensor, conv_state: torch.Tensor | None = None, out: torch.Tensor | None = None, state: object = None
    ) -> torch.Tensor:
        full = F.pad(x, (width - 1, 0)) if conv_state is None else torch.cat((conv_state, x), dim=-1)
        if x.numel():
            y = convolution(full, weight[:, None], bias, steps)
        else:
            y = torch.empty_like(x)
        if conv_state is not None:
            conv_state.copy_(full[..., x.shape[-1] :])
        return give(F.silu(y) if silu else y, x.dtype, out)

    return Prepared(run, refresh=in_place(weights))
