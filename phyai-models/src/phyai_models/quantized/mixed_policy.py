"""A mixed-precision policy as a file that says why each layer is where it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from phyai.policy import Policy, default_policy

from phyai_models.quantized.sensitivity import Sensitivity

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"})


def mixed_policy(found: Sensitivity, policy: Policy, checkpoint: str | Path, observations: str) -> str:
    """The text of a policy file: the rules of ``policy`` with the quantization that was found."""
    chosen = found.chosen
    samples = len(chosen.answers.cosine)
    mean = sum(chosen.answers.cosine) / samples
    lines = [
        f"# Mixed precision for {Path(checkpoint).name}, found by `phyai sensitivity`: the fewest bytes found",
        f"# with a worst-sample cosine of at least {found.budget:g}, over {samples} samples ({observations}).",
        f"# Measured: worst {chosen.worst:.6f}, mean {mean:.6f}; "
        f"{found.nbytes / 1e6:.2f} MB of weights became {chosen.nbytes / 1e6:.2f} MB.",
        f"# Everything at its smallest would have a worst cosine of {found.together.worst:.6f} "
        f"in {found.together.nbytes / 1e6:.2f} MB.",
    ]
    base = attrs.evolve(policy, quantization=None).to_yaml(base=default_policy()).splitlines()
    at = next((i for i, line in enumerate(base) if line.startswith(("rules:", "overrides:"))), len(base))
    return "\n".join([*lines, *base[:at], *_section(found), *base[at:]]) + "\n"


def _section(found: Sensitivity) -> list[str]:
    rank = {key: place + 1 for place, key in enumerate(found.ranking())}
    lines = ["quantization:", f"  method: {found.method}", "  default: null", "  rules:"]
    for g, (group, choice) in enumerate(zip(found.groups, found.chosen.mixture, strict=True)):
        reasons = []
        for o, option in enumerate(group.options):
            measured = found.alone[g, o]
            reasons.append(
                f"alone as {option.scheme.name} it has a worst cosine of {measured.worst:.6f} and saves "
                f"{(group.nbytes - option.nbytes) / 1e6:.2f} MB (rank {rank[g, o]} of {len(rank)})"
            )
        verdict = "keeps its precision" if choice is None else f"becomes {group.options[choice].scheme.name}"
        lines.append(f"    # {group.name}, {group.layers} layers: {verdict};")
        lines += [f"    #   {reason}" for reason in reasons]
        rule: Mapping[str, Any] = {"scheme": None} if choice is None else group.options[choice].rule
        lines.append(f"    - id: {_flow(group.name)}")
        lines.append(f"      match: {_flow({'glob': list(group.paths)})}")
        lines += [f"      {key}: {_flow(value)}" for key, value in rule.items()]
    return lines


def _flow(value: Any) -> str:
    """Plain data in YAML's flow style.

    >>> _flow({"weight": {"dtype": "int4", "group_size": 128}, "input": None})
    '{weight: {dtype: int4, group_size: 128}, input: null}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else json.dumps(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value)
