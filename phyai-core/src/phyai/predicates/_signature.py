"""What the intersection may assume: what an op's calls carry, and what some facts say of others."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import attrs

from phyai.facts import FactKind, FactSpec, FactValue
from phyai.op import Op
from phyai.predicates._algebra import AllOf, AnyOf, Literal, Predicate, all_of, any_of
from phyai.predicates._domains import find_value
from phyai.predicates._literals import Compare, Present
from phyai.predicates._parse import match

#: Facts below these belong to the op: a call carries those that its op declares and no other.
OWNED = ("shape.", "dtype.", "attrs.")


@attrs.frozen
class Signature:
    """The facts that the calls of one op can carry, and a value for each that all of them carry.

    ``declared`` is by name; ``defaults`` stand in a witness where nothing asks for another value.
    """

    declared: Mapping[str, FactSpec]
    defaults: Mapping[str, FactValue]

    @classmethod
    def of(cls, op: Op) -> Signature:
        """The signature of ``op``: its dimensions and the dtypes of its tensors, less what is optional."""
        declared = {spec.name: spec for spec in op.fact_specs()}
        firm = [t for t in op.tensors if not t.optional and t.kind != "output"]
        required = [f"dtype.{t.name}" for t in firm]
        named = {part for t in firm for dim in t.dims for part in _names_in(dim)}
        required += [f"shape.{d.name}" for d in op.dims if d.name in named]
        defaults: dict[str, FactValue] = {}
        for name in required:
            value = find_value((Present(name),), declared[name])
            assert isinstance(value, (bool, int, float, str))
            defaults[name] = value
        return cls(declared, defaults)


def _names_in(dim: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in dim).split()


@attrs.frozen
class Implication:
    """Where ``premise`` holds, ``conclusion`` does."""

    premise: Predicate
    conclusion: Predicate

    @functools.cached_property
    def either(self) -> Predicate:
        """The same said as alternatives: the conclusion, or not the premise."""
        return any_of(complement(self.premise), self.conclusion)


def complement(predicate: Predicate) -> Predicate:
    """True exactly where ``predicate`` is not: unlike its negation also where its facts are absent."""
    if isinstance(predicate, AllOf):
        return any_of(*map(complement, predicate.parts))
    if isinstance(predicate, AnyOf):
        return all_of(*map(complement, predicate.parts))
    if isinstance(predicate, Literal) and not isinstance(predicate, Present):
        return any_of(Present(predicate.fact, negated=True), predicate.negate())
    return predicate.negate()


#: What an architecture says of its device.
IMPLICATIONS: tuple[Implication, ...] = (
    Implication(
        Compare("device.arch", FactKind.ARCH, ">=", "sm0"), match({"device": {"vendor": "nvidia", "type": "cuda"}})
    ),
    Implication(Compare("device.arch", FactKind.ARCH, ">=", "gfx000"), match({"device.vendor": "amd"})),
)
