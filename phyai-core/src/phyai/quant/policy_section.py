"""The ``quantization`` section of a policy file, read into a :class:`QuantPlan`.

>>> plan = plan_from_policy({"method": "rtn", "rules": [
...     {"match": {"glob": "*_proj"}, "scheme": {"weight": {"dtype": "int4", "group_size": 128}, "input": None}}]})
>>> plan.scheme("layers.0.q_proj").name
'w4a16_g128'
>>> plan_from_policy({"methd": "rtn"})
Traceback (most recent call last):
...
phyai.quant.policy_section.QuantPolicyError: methd: unknown key; did you mean 'method'?
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from phyai.errors import DeclarationError, PolicyError
from phyai.facts import canonical_dtype
from phyai.quant.elements import ELEMENT_NAMES
from phyai.quant.names import Matcher, PatternError
from phyai.quant.plan import QuantPlan, QuantRule
from phyai.quant.scheme import NAMED, SCALE_DTYPES, QuantScheme, TensorQuant

METHODS: tuple[str, ...] = ("rtn", "rtn_mse")
_SECTION = ("method", "stage", "default", "rules")
_RULE = ("id", "match", "scheme", "weight", "input", "output", "layout")
_MATCH = ("name", "glob", "regex", "module_cls", "any_of")
_TENSOR = (
    "dtype", "granularity", "group_size", "block_shape", "symmetric", "zero_point", "scale_dtype", "dynamic",
)  # fmt: skip
_GRANULARITY = {
    "tensor": "tensor", "per_tensor": "tensor", "channel": "channel", "per_channel": "channel", "token": "token",
    "per_token": "token", "group": "group", "per_group": "group", "block": "block", "per_block": "block",
}  # fmt: skip


@attrs.frozen
class QuantProblem:
    """One thing that is wrong: where (keys from the section down), what, and what would be right."""

    path: tuple[str | int, ...]
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        where = ".".join(str(key) for key in self.path) or "quantization"
        return f"{where}: {self.message}" + (f"; {self.suggestion}" if self.suggestion else "")


class QuantPolicyError(PolicyError):
    """The quantization section was refused. ``problems`` holds a :class:`QuantProblem` for each."""

    def __init__(self, problems: Sequence[QuantProblem]) -> None:
        super().__init__("\n".join(str(p) for p in problems), tuple(problems))


class _Refuse(Exception):
    def __init__(self, path: tuple[str | int, ...], message: str, suggestion: str | None = None) -> None:
        self.problem = QuantProblem(path, message, suggestion)


def plan_from_policy(section: Mapping[str, Any] | None) -> QuantPlan:
    """Read a policy's ``quantization`` section; None is a plan that changes nothing.

    Raises:
        QuantPolicyError: with every problem found; each carries its key path below the section.
    """
    if section is None:
        return QuantPlan()
    problems: list[QuantProblem] = []

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except _Refuse as refuse:
            problems.append(refuse.problem)
            return None

    if not isinstance(section, Mapping):
        raise QuantPolicyError(
            [QuantProblem((), f"must be a mapping, not {section!r}", "for example {method: rtn, rules: […]}")]
        )
    attempt(lambda: _known((), section, _SECTION))
    method = attempt(lambda: _choice(("method",), section.get("method", "rtn"), METHODS))
    attempt(lambda: _choice(("stage",), section.get("stage", "load"), ("load",)))
    default = attempt(lambda: _scheme(("default",), section.get("default")))
    entries = section.get("rules") or []
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        problems.append(
            QuantProblem(("rules",), f"must be a list of rules, not {entries!r}", "write each as `- match: …`")
        )
        entries = []
    rules = [attempt(functools.partial(_rule, ("rules", i), entry)) for i, entry in enumerate(entries)]
    if problems:
        raise QuantPolicyError(problems)
    return QuantPlan(tuple(rules), default, method)


def _rule(path: tuple[str | int, ...], entry: Any) -> QuantRule:
    _mapping(path, entry)
    _known(path, entry, _RULE)
    if "match" not in entry:
        raise _Refuse(path, "a rule needs a match", "for example match: {glob: '*_proj'}")
    inline = [key for key in ("weight", "input", "output") if key in entry]
    if ("scheme" in entry) == bool(inline):
        raise _Refuse(path, "a rule says one of: scheme, or weight with input", "scheme: null keeps the precision")
    if inline:
        scheme = _scheme(path, {key: entry[key] for key in inline})
    else:
        scheme = _scheme((*path, "scheme"), entry["scheme"])
    layout = entry.get("layout")
    if layout is not None and not isinstance(layout, str):
        raise _Refuse((*path, "layout"), f"must be the name of a layout, not {layout!r}", "for example plain")
    rule_id = entry.get("id", f"quantization.rules[{path[-1]}]")
    if not isinstance(rule_id, str):
        raise _Refuse((*path, "id"), f"must be a name, not {rule_id!r}", "for example int4-projections")
    return QuantRule(_match((*path, "match"), entry["match"]), scheme, layout, id=rule_id)


def _match(path: tuple[str | int, ...], entry: Any) -> tuple[tuple[Matcher, ...], ...]:
    """An any-of list of all-of lists."""
    _mapping(path, entry)
    _known(path, entry, _MATCH)
    if not entry:
        raise _Refuse(path, "matches nothing", "say one of name, glob, regex, module_cls, any_of")
    alternatives: tuple[tuple[Matcher, ...], ...] = ((),)
    for key, value in entry.items():
        if key == "any_of":
            if not isinstance(value, Sequence) or isinstance(value, str) or not value:
                raise _Refuse(
                    (*path, key), f"must be a list of matches, not {value!r}", "for example [{glob: '*_proj'}]"
                )
            options = [m for i, item in enumerate(value) for m in _match((*path, key, i), item)]
        else:
            options = [(_matcher((*path, key), key, pattern),) for pattern in _strings((*path, key), value)]
        alternatives = tuple((*left, *right) for left in alternatives for right in options)
    return alternatives


def _matcher(path: tuple[str | int, ...], kind: str, pattern: str) -> Matcher:
    try:
        return Matcher(kind, pattern)
    except PatternError as error:
        raise _Refuse(path, str(error), "a glob says most of it: glob: '*_proj'") from None


def _scheme(path: tuple[str | int, ...], entry: Any) -> QuantScheme | None:
    if entry is None:
        return None
    _mapping(path, entry)
    _known(path, entry, ("weight", "input", "output"))
    if entry.get("weight") is None:
        raise _Refuse(path, "a scheme needs a weight", "for example weight: {dtype: int8}; scheme: null for none")
    weight = _tensor((*path, "weight"), entry["weight"], activation=False)
    inputs = entry.get("input")
    outputs = entry.get("output")
    return QuantScheme(
        weight,
        None if inputs is None else _tensor((*path, "input"), inputs, activation=True),
        None if outputs is None else _tensor((*path, "output"), outputs, activation=True),
    )


def _tensor(path: tuple[str | int, ...], entry: Any, *, activation: bool) -> TensorQuant:
    entry = {"dtype": entry} if isinstance(entry, str) else entry
    _mapping(path, entry)
    _known(path, entry, _TENSOR)
    written = entry.get("dtype")
    if not isinstance(written, str):
        raise _Refuse(path, "needs a dtype", f"one of {', '.join((*NAMED, *ELEMENT_NAMES))}")
    dtype = canonical_dtype(written)
    fields: dict[str, Any] = {"dynamic": activation}
    if dtype in NAMED:
        fields |= attrs.asdict(NAMED[dtype], filter=lambda a, v: v is not None) | {"dynamic": activation}
    elif dtype in ELEMENT_NAMES:
        fields["dtype"] = dtype
        if dtype.startswith("int"):
            fields["scale_rule"] = "full_range"
    else:
        raise _Refuse((*path, "dtype"), f"{written!r} is not an element type", _near(written, (*NAMED, *ELEMENT_NAMES)))
    given = _granularity(path, entry, activation=activation)
    if dtype in NAMED and given:
        named = {key: fields.get(key) for key in ("granularity", "group_size", "block_shape")}
        if named != {"block_shape": None, "group_size": None} | given:
            raise _Refuse(path, f"{dtype} is a group of {fields['group_size']} inputs", "leave the granularity out")
    fields |= given or ({} if dtype in NAMED else {"granularity": "token" if activation else "channel"})
    fields |= _zero_point(path, entry)
    if "scale_dtype" in entry:
        fields["scale_dtype"] = _choice(
            (*path, "scale_dtype"), canonical_dtype(str(entry["scale_dtype"])), SCALE_DTYPES
        )
    if "dynamic" in entry and entry["dynamic"] is not activation:
        wanted = "dynamic: true; a static scale needs calibration" if activation else "dynamic: false"
        raise _Refuse((*path, "dynamic"), f"{entry['dynamic']!r} is not supported here", wanted)
    try:
        return TensorQuant(**fields)
    except DeclarationError as error:
        raise _Refuse(path, str(error), "docs/policy.md shows what goes together") from None


def _granularity(path: tuple[str | int, ...], entry: Mapping[str, Any], *, activation: bool) -> dict[str, Any]:
    """The granularity fields that ``entry`` gives, in canonical form; empty when it gives none."""
    written, group, block = (entry.get(key) for key in ("granularity", "group_size", "block_shape"))
    if written is not None:
        written = _GRANULARITY[_choice((*path, "granularity"), written, tuple(_GRANULARITY))]
    if group is not None:
        _size((*path, "group_size"), group)
    if block is not None:
        if not isinstance(block, Sequence) or isinstance(block, str) or len(block) != 2:
            raise _Refuse((*path, "block_shape"), f"must be [outputs, inputs], not {block!r}", "for example [128, 128]")
        for i, size in enumerate(block):
            _size((*path, "block_shape", i), size)
    if group is not None and block is not None:
        raise _Refuse(path, "group_size and block_shape exclude each other", "keep one of them")
    if written == "group" and group is None:
        raise _Refuse(path, "granularity group needs a group_size", "for example group_size: 128")
    if written == "block" and block is None:
        raise _Refuse(path, "granularity block needs a block_shape", "for example block_shape: [128, 128]")
    if written not in (None, "group") and group is not None:
        raise _Refuse((*path, "group_size"), f"does not belong to granularity {written}", "leave it out")
    if written not in (None, "block") and block is not None:
        raise _Refuse((*path, "block_shape"), f"does not belong to granularity {written}", "leave it out")
    if block is not None and int(block[0]) == 1:  # one row of inputs: a group
        group, block = block[1], None
    if group is not None:
        return {"granularity": "group", "group_size": int(group)}
    if block is not None:
        if activation:
            raise _Refuse((*path, "block_shape"), "an input has no blocks of rows", "write block_shape: [1, inputs]")
        return {"granularity": "block", "block_shape": (int(block[0]), int(block[1]))}
    if activation and written == "channel":  # what the earlier system calls an input's rows
        written = "token"
    if not activation and written == "token":
        raise _Refuse((*path, "granularity"), "token is for inputs", "a weight's rows are channel")
    return {"granularity": written} if written else {}


def _zero_point(path: tuple[str | int, ...], entry: Mapping[str, Any]) -> dict[str, Any]:
    symmetric, zero_point = entry.get("symmetric"), entry.get("zero_point")
    if symmetric is not None and not isinstance(symmetric, bool):
        raise _Refuse((*path, "symmetric"), f"is {symmetric!r}", "write true or false")
    if zero_point is not None:
        _choice((*path, "zero_point"), zero_point, ("int", "float"))
        if symmetric:
            raise _Refuse((*path, "zero_point"), "a symmetric tensor has no zero point", "leave one of them out")
        return {"zero_point": zero_point}
    return {"zero_point": "int"} if symmetric is False else {}


def _mapping(path: tuple[str | int, ...], value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _Refuse(path, f"must be a mapping, not {value!r}", "write {key: value}")


def _known(path: tuple[str | int, ...], entry: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key in entry:
        if key not in allowed:
            raise _Refuse((*path, str(key)), "unknown key", _near(str(key), allowed))


def _choice(path: tuple[str | int, ...], value: Any, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _Refuse(path, f"{value!r} is not allowed", _near(str(value), allowed))
    return value


def _size(path: tuple[str | int, ...], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _Refuse(path, f"must be a whole number of at least 1, not {value!r}", "for example 128")


def _strings(path: tuple[str | int, ...], value: Any) -> list[str]:
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not values or not all(isinstance(v, str) and v for v in values):
        raise _Refuse(path, f"must be a name or a list of names, not {value!r}", "for example '*_proj'")
    return list(values)


def _near(given: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"one of {', '.join(allowed)}"
