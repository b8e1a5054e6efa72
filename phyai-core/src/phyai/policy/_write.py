"""Policies as YAML: a whole policy as text, and rules written into a person's file.

Writing into a file keeps everything that is there, comments and order included, replaces only the rules that an earlier
run wrote, and happens at once or not at all.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import attrs
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.representer import RoundTripRepresenter

from phyai.catalog import Catalog
from phyai.errors import PolicyError
from phyai.files.replacing import replacing
from phyai.policy._load import parse_policy, read_file
from phyai.policy._model import SCHEMA, Defaults, Layer, NumericsDemand, Policy, Rule
from phyai.policy._yaml import read_yaml

#: What a section of written rules is called; their ids begin with it.
SECTION = "tuned"
#: Added to the priority of written rules, so that a person's rules win unless they say otherwise.
SECTION_PRIORITY = -1000
_BEGIN = "# >>> {section}: written by PhyAI; the next run replaces what stands between these two lines"
_END = "# <<< {section}"
_EMPTY = re.compile(r"^rules\s*:\s*(\[\s*\]|null|Null|NULL|~)?")


def rule_data(rule: Rule) -> dict[str, Any]:
    """A rule as the mapping that a policy file has for it."""
    data: dict[str, Any] = {"id": rule.id}
    if rule.priority:
        data["priority"] = rule.priority
    data["match"] = rule.match.to_yaml()
    if rule.restriction is not None and rule.restriction.pin:
        data["use" if rule.layer is Layer.OVERRIDE else "pin"] = rule.restriction.kernels[0]
    elif rule.restriction is not None:
        data["restrict_to"] = list(rule.restriction.kernels)
    if rule.prefer:
        data["prefer"] = list(rule.prefer)
    if rule.params:
        data["params"] = dict(rule.params)
    if rule.numerics is not None:
        data["numerics"] = _numerics_data(rule.numerics)
    if rule.fallback:
        data["fallback"] = list(rule.fallback)
    return data


def policy_data(
    policy: Policy,
    layers: Collection[Layer] = (Layer.TUNING, Layer.USER, Layer.OVERRIDE),
    base: Policy | None = None,
) -> dict[str, Any]:
    """A policy as the mapping of a file that is read over ``base``; ``layers`` says whose rules."""
    below = base or Policy()
    data: dict[str, Any] = {"schema": policy.schema}
    if policy.profile != below.profile:
        data["profile"] = policy.profile
    defaults: dict[str, Any] = {}
    if policy.defaults.fallback != below.defaults.fallback:
        defaults["fallback"] = policy.defaults.fallback
    if policy.defaults.numerics is not None:
        defaults["numerics"] = _numerics_data(policy.defaults.numerics)
    if ties := _own_ties(policy.defaults.ties, below.defaults):
        defaults["ties"] = list(ties)
    if defaults:
        data["defaults"] = defaults
    if policy.quantization is not None:
        data["quantization"] = dict(policy.quantization)
    rules = [rule for rule in policy.rules if rule.layer in layers]
    for section, of_section in (("rules", False), ("overrides", True)):
        chosen = [rule_data(rule) for rule in rules if (rule.layer is Layer.OVERRIDE) is of_section]
        if chosen:
            data[section] = chosen
    return data


def _own_ties(ties: tuple[str, ...], base: Defaults) -> tuple[str, ...]:
    """The shortest head of ``ties`` that gives all of them over ``base``."""
    heads = (ties[:length] for length in range(len(ties)))
    return next((head for head in heads if Defaults(ties=head).over(base).ties == ties), ties)


def policy_yaml(
    policy: Policy,
    layers: Collection[Layer] = (Layer.TUNING, Layer.USER, Layer.OVERRIDE),
    base: Policy | None = None,
) -> str:
    """A policy as the text of a file, which :func:`phyai.policy.parse_policy` over ``base`` reads back to the same."""
    stream = io.StringIO()
    _yaml().dump(_styled(policy_data(policy, layers, base)), stream)
    return stream.getvalue()


def update_rules(
    path: str | os.PathLike[str], rules: Iterable[Rule], *, catalog: Catalog | None = None, section: str = SECTION
) -> None:
    """Write ``rules`` into a policy file, in place of those that an earlier call with ``section`` wrote.

    They stand at the end of the file's ``rules``, between two comments that mark the section; no rules remove it.
    The ids get the prefix ``<section>/``, and the priorities are lowered by 1000, so that a person's rules win.
    Everything else in the file stays as it is. A file that is not there is made. The file is replaced in one step, and
    only by one that loads.

    Raises:
        PolicyError: the file is refused, before the change or with it; it is then left as it was.
        OSError: it cannot be written.
    """
    target = Path(os.path.realpath(path))
    data = read_file(target) if target.exists() else f"schema: {SCHEMA}\n".encode()
    name = os.fspath(path)
    before = parse_policy(data, file=name, catalog=catalog, base=Policy()).policy
    prefix = f"{section}/"
    written = [
        attrs.evolve(r, id=prefix + r.id.removeprefix(prefix), priority=r.priority + SECTION_PRIORITY, layer=Layer.USER)
        for r in rules
    ]
    text = _spliced(data.decode("utf-8-sig").replace("\r\n", "\n"), written, section)
    try:
        after = parse_policy(text, file=name, catalog=catalog, base=Policy()).policy
    except PolicyError as error:
        what = f"{name} is left as it was; with the new rules it would not load:\n{error}"
        raise PolicyError(what, error.problems) from None
    kept = tuple(rule for rule in before.rules if not rule.id.startswith(prefix))
    others = tuple(rule for rule in after.rules if not rule.id.startswith(prefix))
    if attrs.evolve(after, rules=others) != attrs.evolve(before, rules=kept):
        raise PolicyError(f"{name} is left as it was; new rules need its `rules:` to be a block list, `- id: …`")
    with replacing(target) as file:
        file.write((text if b"\r\n" not in data else text.replace("\n", "\r\n")).encode())


def _spliced(text: str, rules: list[Rule], section: str) -> str:
    """The text with the section's rules in it, and every other line as it was."""
    lines = text.split("\n")
    begin, end = _BEGIN.format(section=section), _END.format(section=section)
    marks = [i for i, line in enumerate(lines) if line.strip() in (begin, end)]
    if len(marks) == 2:
        dash = len(lines[marks[0]]) - len(lines[marks[0]].lstrip())
        lines[marks[0] : marks[1] + 1] = _section(rules, dash, begin, end)
    elif rules:
        lines, at, dash = _room(lines)
        lines[at:at] = _section(rules, dash, begin, end)
    return "\n".join(lines)


def _room(lines: list[str]) -> tuple[list[str], int, int]:
    """The lines with a block list of rules in them, the line where it ends, and the column of its dashes."""
    root = read_yaml("\n".join(lines), "")
    rules = root.value.get("rules")
    if rules is None:
        while not lines[-1].strip():
            lines = lines[:-1]
        return [*lines, "", "rules:", ""], len(lines) + 2, 2
    key = root.keys["rules"][0] - 1
    if not rules.value:  # `rules: []`, or nothing
        return [*lines[:key], _EMPTY.sub("rules:", lines[key]), *lines[key + 1 :]], key + 1, 2
    first = lines[rules.line - 1]
    if not first.lstrip().startswith("-"):  # a list in brackets
        return _room(_in_block_style(lines))
    following = [line for line, _ in root.keys.values() if line > rules.line]
    end = min(following, default=len(lines) + 1) - 1
    while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
        end -= 1  # comments there introduce what follows
    return lines, end, len(first) - len(first.lstrip())


def _in_block_style(lines: list[str]) -> list[str]:
    """The lines with the rules as a block list: ruamel.yaml writes the file anew, comments and order kept."""
    yaml = _yaml()
    data = yaml.load("\n".join(lines))
    data["rules"].fa.set_block_style()
    stream = io.StringIO()
    yaml.dump(data, stream)
    return stream.getvalue().split("\n")


def _section(rules: list[Rule], dash: int, begin: str, end: str) -> list[str]:
    if not rules:
        return []
    stream = io.StringIO()
    _yaml(dash).dump({"rules": _styled([rule_data(rule) for rule in rules], 1)}, stream)
    return [" " * dash + begin, *stream.getvalue().splitlines()[1:], " " * dash + end]


class _Representer(RoundTripRepresenter):
    """Writes null as ``null``."""


_Representer.add_representer(type(None), lambda writer, _: writer.represent_scalar("tag:yaml.org,2002:null", "null"))


def _yaml(offset: int = 2) -> YAML:
    yaml = YAML(typ="rt")
    yaml.Representer = _Representer
    yaml.preserve_quotes = True
    yaml.width = 100_000  # a person's lines are not broken
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml


def _numerics_data(demand: NumericsDemand) -> Any:
    words = [word for word in ("reproducible", "batch_invariant") if getattr(demand, word)]
    if demand.accumulation:
        return dict.fromkeys(words, True) | {"accumulation": list(demand.accumulation)}
    return words[0] if len(words) == 1 else words or "any"


def _styled(data: Any, depth: int = 0) -> Any:
    """Plain data for ruamel.yaml: lists of scalars and what lies deep in one line, the rest in block style."""
    if isinstance(data, dict):
        node: Any = CommentedMap((key, _styled(value, depth + 1)) for key, value in data.items())
        flat = all(not isinstance(value, dict | list) for value in data.values())
    elif isinstance(data, list | tuple):
        node = CommentedSeq(_styled(value, depth + 1) for value in data)
        flat = all(not isinstance(value, dict | list) for value in data)
    else:
        return data
    if flat and depth:
        node.fa.set_flow_style()
    return node
