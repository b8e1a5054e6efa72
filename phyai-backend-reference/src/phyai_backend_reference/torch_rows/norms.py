"""``torch.rms_norm``, ``torch.layer_norm``, ``torch.group_norm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.refresh import in_place

from phyai_backend_reference.numerics import attribute, give


def prepare_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight = weights.get("weight")
    eps, offset = attribute(facts, "eps", 1e-6), attribute(facts, "offset", 0)
    factor = offset + weight if offset and weight is not None else weight
    copy = in_place(weights)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return give(F.rms_norm(x, x.shape[-1:], factor, eps), x.dtype, out)

    def refresh(new: Mapping[str, Any]) -> None:
        copy(new)
        if factor is not None and weight is not None and factor is not weight:
            factor.copy_(offset + weight)

    return Prepared(run, refresh=refresh)


def prepare_layer_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight, bias = weights.get("weight"), weights.get("bias")
    eps = attribute(facts, "eps", 1e-5)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return give(F.layer_norm(x, x.shape[-1:], weight, bias, eps), x.dtype, out)

    return Prepared(run, refresh=in_place(weights))


def prepare_group_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    weight, bias = weights.get("weight"), weights.get("bias")
    groups, eps = attribute(facts, "groups", 1), attribute(facts, "eps", 1e-5)

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        return give(F.group_norm(x, groups, weight, bias, eps), x.dtype, out)

    return Prepared(run, refresh=in_place(weights))
