"""Predicates, written as the mapping that ``match`` reads."""

from __future__ import annotations

from typing import Any

import attrs

from phyai.facts import FactKind
from phyai.predicates._algebra import FALSE, AnyOf, Literal, Predicate, conjuncts
from phyai.predicates._literals import Compare, Contains, Glob, MultipleOf, OneOf, Present


def to_yaml(predicate: Predicate) -> dict[str, Any]:
    if predicate == FALSE:
        return {"none_of": [{}]}
    out: dict[str, Any] = {}
    denied: list[dict[str, Any]] = []
    joinable: set[str] = set()  # facts whose value is text that takes more comparisons after a comma
    surplus: list[dict[str, Any]] = []  # a map holds each key once; the rest goes to all_of
    for part in conjuncts(predicate):
        if isinstance(part, AnyOf):
            _place(out, "any_of", [to_yaml(branch) for branch in part.parts], surplus)
        elif isinstance(part, Literal) and part.negated and not isinstance(part, Present):
            positive = attrs.evolve(part, negated=False)
            denied.append({part.fact: _value(positive)})
        elif isinstance(part, Present) and not part.negated:
            denied.append({part.fact: None})
        elif isinstance(part, Compare | MultipleOf) and part.fact in joinable:
            out[part.fact] = f"{out[part.fact]},{_value(part)}"
        elif isinstance(part, Literal):
            if isinstance(part, Compare | MultipleOf) and part.fact not in out:
                joinable.add(part.fact)
            _place(out, part.fact, _value(part), surplus)
    if denied:
        out["none_of"] = denied
    if surplus:
        out["all_of"] = surplus
    return out


def _place(out: dict[str, Any], key: str, value: Any, surplus: list[dict[str, Any]]) -> None:
    if key in out:
        surplus.append({key: value})
    else:
        out[key] = value


def _value(literal: Literal) -> Any:
    if isinstance(literal, Present):
        return None
    if isinstance(literal, OneOf | Contains):
        values = literal.values if isinstance(literal, OneOf) else literal.elements
        return values[0] if len(values) == 1 else list(values)
    if isinstance(literal, MultipleOf):
        return f"%{literal.modulus}"
    if isinstance(literal, Glob):
        return literal.pattern
    assert isinstance(literal, Compare)
    plain = literal.order == "==" and literal.kind is FactKind.VERSION
    return str(literal.bound) if plain else f"{literal.order}{literal.bound}"
