"""Rules that contradict each other, and rules that nothing can match: found when a file is loaded.

Two rules conflict when one layer and priority holds both, a call exists that both match, and they say different
things about one aspect of it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

from phyai.catalog import Catalog
from phyai.facts import Facts
from phyai.policy._index import bits
from phyai.policy._model import Location, Rule
from phyai.policy._overlap import may_overlap
from phyai.policy._problems import Report
from phyai.predicates import TRUE, AllOf, AnyOf, Glob, Predicate, PredicateError, Signature, intersect
from phyai.predicates._literals import show

#: The exact comparisons that are made for one file, in pairs of alternatives (a rule without ``any_of`` is one
#: alternative). A file with more to compare is told so.
MAX_COMPARISONS = 5_000
#: The alternatives of a rule beyond which it is not searched for a call that matches.
MAX_ALTERNATIVES = 256
NOWHERE = Location("<policy>", 1, 1)


def find_conflicts(rules: Sequence[Rule], doubtful: Collection[str], catalog: Catalog, report: Report) -> None:
    """Report every pair of rules that conflict, with a call that both match, and every rule without such a call.

    ``doubtful`` are the ids of rules of which a warning already says that no call may match them.
    """
    checker = _Conflicts(catalog, report)
    for rule in rules:
        if rule.id not in doubtful:
            checker.check_reachable(rule)
    groups: dict[tuple[int, int], list[Rule]] = {}
    for rule in rules:
        groups.setdefault(rule.strength, []).append(rule)
    for group in groups.values():
        checker.compare(group)


def statements(rule: Rule) -> dict[str, Hashable]:
    """What a rule says, aspect by aspect; each parameter is an aspect of its own."""
    said: dict[str, Hashable] = {}
    if rule.restriction is not None:
        said["restriction"] = (rule.restriction.pin, frozenset(rule.restriction.kernels))
    if rule.prefer:
        said["order"] = rule.prefer
    if rule.numerics is not None:
        said["numerics"] = rule.numerics
    if rule.fallback:
        said["fallback"] = rule.fallback
    return said | {f"params.{name}": _frozen(value) for name, value in rule.params.items()}


class _Conflicts:
    def __init__(self, catalog: Catalog, report: Report) -> None:
        self._catalog = catalog
        self._report = report
        self._compared = 0
        self._incomplete = False

    @cached_property
    def _signatures(self) -> dict[str, Signature]:
        return {op.name: Signature.of(op) for op in self._catalog.ops}

    def check_reachable(self, rule: Rule) -> None:
        few = _alternatives(rule.match) <= MAX_ALTERNATIVES
        if few and rule.match != TRUE and self._witness(rule, rule) is None:
            what = f"no call can match rule `{rule.id}`: no value of its facts satisfies every condition"
            self._report.warn(rule.location or NOWHERE, what, str(rule.match)[:120])

    def compare(self, rules: Sequence[Rule]) -> None:
        """Compare rules of one layer and priority."""
        if len(rules) < 2:
            return
        reach = may_overlap([rule.match for rule in rules])
        differing = _differing([statements(rule) for rule in rules])
        for i, first in enumerate(rules):
            aspects_of: dict[int, list[str]] = {}
            for aspect, mask in differing[i].items():
                for j in bits((reach[i] & mask) >> (i + 1)):
                    aspects_of.setdefault(i + 1 + j, []).append(aspect)
            for j, aspects in sorted(aspects_of.items()):
                self._compare(first, rules[j], aspects)

    def _compare(self, first: Rule, second: Rule, aspects: list[str]) -> None:
        aspects = [a for a in aspects if not a.startswith("params.") or self._share_a_kernel(first, second)]
        if not aspects:
            return
        work = _alternatives(first.match) * _alternatives(second.match)
        if self._compared + work > MAX_COMPARISONS:
            if not self._incomplete:
                what = (
                    f"so many rules overlap that not all pairs were compared for conflicts; rule `{second.id}` is the"
                )
                advice = "give rules different priorities, or say fewer alternatives in one"
                self._report.warn(second.location or NOWHERE, f"{what} first that was not", None, advice)
            self._incomplete = True
            return
        self._compared += work
        witness = self._witness(first, second)
        if witness is None:
            return
        where = first.location or NOWHERE
        call = _shown(witness, first.match.facts | second.match.facts)
        said = "; ".join(f"{_said(first, a)} against {_said(second, a)}" for a in aspects)
        message = (
            f"rule `{second.id}` conflicts with rule `{first.id}` ({where.file}:{where.line}): both have priority "
            f"{first.priority} and match {call}, and they say different things: {said}"
        )
        advice = "give one of them a higher priority"
        self._report.error(second.location or NOWHERE, message, None, advice, witness=witness)

    def _witness(self, first: Rule, second: Rule) -> Facts | None:
        try:
            return intersect(
                first.match, second.match, vocabulary=self._catalog.vocabulary, signatures=self._signatures
            )
        except PredicateError as error:
            pair = f"rule `{first.id}`" if first is second else f"rules `{first.id}` and `{second.id}`"
            self._report.warn(second.location or NOWHERE, f"{pair} cannot be checked for conflicts: {error.message}")
            return Facts() if first is second else None

    def _share_a_kernel(self, first: Rule, second: Rule) -> bool:
        """Whether the params of both rules can go to one kernel; yes when it cannot be told."""
        if not (_patterns(first) and _patterns(second)) or set(_patterns(first)) & set(_patterns(second)):
            return True
        kernels = self._catalog.kernels
        return any(first.gives_params_to(k.id) and second.gives_params_to(k.id) for k in kernels)


def _differing(said: Sequence[Mapping[str, Hashable]]) -> list[dict[str, int]]:
    """For each rule and aspect it speaks of, the mask of rules that say something else about it."""
    speaking: dict[str, dict[Hashable, int]] = {}
    for i, aspects in enumerate(said):
        for aspect, statement in aspects.items():
            same = speaking.setdefault(aspect, {})
            same[statement] = same.get(statement, 0) | 1 << i
    everyone = {aspect: sum(masks.values()) for aspect, masks in speaking.items()}
    return [{a: everyone[a] & ~speaking[a][statement] for a, statement in aspects.items()} for aspects in said]


def _alternatives(predicate: Predicate) -> int:
    """How many conjunctions of literals a predicate comes down to, at most; a glob of many stars counts for more."""
    if isinstance(predicate, Glob):
        stars = predicate.pattern.count("*")
        return 1 if stars <= 4 else stars * stars
    if isinstance(predicate, AllOf):
        return prod(map(_alternatives, predicate.parts))
    return sum(map(_alternatives, predicate.parts)) if isinstance(predicate, AnyOf) else 1


def _patterns(rule: Rule) -> tuple[str, ...]:
    return rule.restriction.kernels if rule.restriction else rule.prefer


def _frozen(value: Any) -> Hashable:
    """A value of plain data that can be compared and hashed; true is not 1."""
    if isinstance(value, dict):
        return frozenset((key, _frozen(child)) for key, child in value.items())
    if isinstance(value, list):
        return tuple(_frozen(child) for child in value)
    return (type(value).__name__, value)


def _said(rule: Rule, aspect: str) -> str:
    name, _, key = aspect.partition(".")
    if name == "restriction":
        return f"`{rule.restriction}`"
    if name == "params":
        return f"`params: {{{key}: {rule.params[key]}}}`"
    kernels = rule.prefer if name == "order" else rule.fallback
    if name == "numerics":
        return f"`numerics: {rule.numerics}`"
    return f"`{'prefer' if name == 'order' else 'fallback'}: [{', '.join(kernels)}]`"


def _shown(witness: Facts, asked: frozenset[str]) -> str:
    """The call in words: its op, what the rules ask for, then the rest of what such a call carries."""
    names = sorted(witness, key=lambda name: (name != "op", name not in asked))
    return ", ".join(f"{name}={show(witness[name])}" for name in names)
