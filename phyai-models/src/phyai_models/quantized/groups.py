"""Layer groups of a model, and which precision each may take."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from phyai.engine.plugin import Study
from phyai.errors import CheckpointError
from phyai.policy import Policy
from phyai.quant import QuantScheme, plan_from_policy
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.names import aliases_of

BY = ("kind", "layer")
_SCALE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "e8m0": 1, "fp8_e4m3": 1}


@attrs.frozen
class Option:
    """A precision that a group may take: the policy file it comes from, what its rule says, and the group's bytes."""

    source: str
    scheme: QuantScheme
    rule: Mapping[str, Any] = attrs.field(eq=False)
    nbytes: int = 0


@attrs.frozen
class Group:
    """Layers that are decided about together. ``paths`` are the globs that match them in the model, ``nbytes`` what
    their original weights take."""

    name: str
    paths: tuple[str, ...]
    layers: int
    nbytes: int
    options: tuple[Option, ...]


def groups_of(
    checkpoint_dir: str | Path, study: Study, policies: Mapping[str, Policy], by: str = "kind"
) -> tuple[Group, ...]:
    """The groups of the layers that any of the policies quantizes, in the model's order.

    By ``kind``, equal layers of all depths are one group, and the shards of a fused one too; by ``layer``, each depth
    is a group of its own.

    Raises:
        CheckpointError: no policy reaches a layer.
        QuantPolicyError: a quantization section is refused.
    """
    checkpoint = Checkpoint.open(checkpoint_dir)
    plans = {name: plan_from_policy(policy.quantization) for name, policy in policies.items()}
    members: dict[tuple[Any, ...], list[tuple[str, int, tuple[int, int]]]] = {}
    rules: dict[tuple[Any, ...], list[tuple[str, QuantScheme, Mapping[str, Any]]]] = {}
    for name, path in study.paths.items():
        info = checkpoint.tensors.get(f"{name}.weight")
        if info is None:
            continue
        reached = []
        for source, plan in plans.items():
            scheme = plan.scheme(path)
            if scheme is not None:
                reached.append((source, scheme, _said(policies[source], plan.rule(path), plan.rules)))
        if reached:
            key = (_group_name(path, by), tuple((source, scheme) for source, scheme, _ in reached))
            members.setdefault(key, []).append((path, info.end - info.begin, (info.shape[0], info.shape[1])))
            rules.setdefault(key, reached)
    if not members:
        raise CheckpointError("no quantization rule of the policies reaches a layer of this model")
    return tuple(_group(key[0], found, rules[key], by) for key, found in members.items())


def _group(
    name: str,
    found: Sequence[tuple[str, int, tuple[int, int]]],
    reached: Sequence[tuple[str, QuantScheme, Mapping[str, Any]]],
    by: str,
) -> Group:
    paths = tuple(dict.fromkeys(_glob(path) if by == "kind" else path for path, _, _ in found))
    options = tuple(
        Option(source, scheme, rule, sum(weight_bytes(scheme, n, k) for _, _, (n, k) in found))
        for source, scheme, rule in reached
    )
    return Group(name, paths, len(found), sum(nbytes for _, nbytes, _ in found), options)


def _said(policy: Policy, rule: Any, rules: Sequence[Any]) -> Mapping[str, Any]:
    """What the file's own rule says of the scheme and the layout."""
    section = policy.quantization or {}
    if rule is None:
        return {"scheme": section.get("default")}
    written = section["rules"][next(i for i, r in enumerate(rules) if r is rule)]
    if "scheme" in written:
        scheme = written["scheme"]
    else:
        scheme = {key: written[key] for key in ("weight", "input", "output") if key in written}
    return {"scheme": scheme, **({"layout": written["layout"]} if "layout" in written else {})}


def _glob(path: str) -> str:
    """The path with its depth left open."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", path)


def _group_name(path: str, by: str) -> str:
    fused = aliases_of(path)[-1]
    return _glob(fused) if by == "kind" else fused


def weight_bytes(scheme: QuantScheme, n: int, k: int) -> int:
    """Bytes of a quantized weight ``[n, k]`` in the plain layout.

    >>> from phyai.quant.scheme import TensorQuant
    >>> weight_bytes(QuantScheme(TensorQuant("int4", "group", group_size=32, scale_dtype="bf16")), 16, 64)
    576
    """
    quant = scheme.weight
    scales = math.prod(quant.scale_shape(n, k))
    zero_point = {None: 0, "int": 2, "float": 4}[quant.zero_point]
    codes = n * -(-k * quant.bits // 8)
    return codes + scales * (_SCALE_BYTES[quant.scale_dtype] + zero_point) + (8 if quant.second_scale else 0)
