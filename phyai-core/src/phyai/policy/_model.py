"""The policy as data: rules with independent aspects, in layers.

A rule speaks of up to five *aspects* of a decision: which kernels are allowed (``pin``, ``restrict_to``), which come
first (``prefer``), ``params``, ``numerics`` and ``fallback``. Each aspect is settled on its own, by the rule of the
highest layer, and within a layer of the highest priority, that matches the call and speaks of it.

>>> from phyai.predicates import match
>>> low = Rule(id="gemm", match=match({"op": "gemm"}), restriction=Restriction(("torch.gemm.*",)))
>>> high = Rule(id="small", match=match({"op": "gemm"}), priority=9, prefer=("torch.gemm.bf16",))
>>> aspects = Policy(rules=(low, high)).aspects({"op": "gemm"})
>>> aspects.restriction.id, [rule.id for rule in aspects.prefer]
('gemm', ['small'])
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs

from phyai.decision import RuleRef
from phyai.facts import FactValue
from phyai.kernel import Numerics
from phyai.policy._index import RuleIndex
from phyai.predicates import Predicate

SCHEMA = "phyai.kernel/v1"
PROFILES = ("static", "autotune")
FALLBACKS = ("error", "warn", "reference")


class Layer(enum.IntEnum):
    """Where a rule comes from; a higher layer wins, and priority compares within one.

    Below them all are the bands and ranks that kernels declare.
    """

    SHIPPED = 1  # the default policy that comes with PhyAI
    TUNING = 2  # what was measured
    USER = 3  # the ``rules:`` of a policy file
    OVERRIDE = 4  # its ``overrides:``

    def __str__(self) -> str:
        return self.name.lower()


@attrs.frozen
class Location:
    """A place in a file; ``line`` and ``column`` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


def is_glob(pattern: str) -> bool:
    """Whether a pattern has a wildcard; only then is it more than one id."""
    return any(char in pattern for char in "*?[")


def kernel_matches(pattern: str, kernel_id: str) -> bool:
    """Whether a kernel id, or a glob over ids, names this kernel.

    >>> kernel_matches("torch.*", "torch.gemm.bf16"), kernel_matches("torch.gemm", "torch.gemm.bf16")
    (True, False)
    """
    return pattern == kernel_id or fnmatch.fnmatchcase(kernel_id, pattern)


@attrs.frozen
class Restriction:
    """The kernels that a rule allows: ids and globs. A ``pin`` is one id, and is never relaxed."""

    kernels: tuple[str, ...]
    pin: bool = False

    def allows(self, kernel_id: str) -> bool:
        return any(kernel_matches(pattern, kernel_id) for pattern in self.kernels)

    def __str__(self) -> str:
        return f"{'pin' if self.pin else 'restrict_to'}: {', '.join(self.kernels)}"


@attrs.frozen
class NumericsDemand:
    """What is asked of a kernel's numerics. The default asks nothing (``numerics: any``).

    >>> NumericsDemand(reproducible=True).why_not(Numerics(reproducible=False))
    'not bitwise reproducible'
    """

    reproducible: bool = False
    batch_invariant: bool = False
    accumulation: tuple[str, ...] = ()

    def why_not(self, numerics: Numerics) -> str | None:
        """None when the kernel promises all that is asked, or in words what it does not."""
        missing = []
        if self.reproducible and not numerics.reproducible:
            missing.append("not bitwise reproducible")
        if self.batch_invariant and not numerics.batch_invariant:
            missing.append("not batch invariant")
        if self.accumulation and numerics.accumulation not in self.accumulation:
            missing.append(f"accumulates in {numerics.accumulation}, not {' or '.join(self.accumulation)}")
        return "; ".join(missing) or None

    def __str__(self) -> str:
        asked = [name for name in ("reproducible", "batch_invariant") if getattr(self, name)]
        return ", ".join([*asked, *(f"accumulation in {name}" for name in self.accumulation)]) or "any"


@attrs.frozen
class Rule:
    """One rule. ``params`` and the patterns of kernels are as validated; op aliases in them are resolved.

    ``notes`` says of kernels, by id, what is behind the rule (tuning: their timings); explanations show it.
    """

    id: str
    match: Predicate
    priority: int = 0
    restriction: Restriction | None = None
    prefer: tuple[str, ...] = ()
    params: Mapping[str, Any] = attrs.field(factory=dict)
    numerics: NumericsDemand | None = None
    fallback: tuple[str, ...] = ()
    layer: Layer = Layer.USER
    location: Location | None = attrs.field(default=None, eq=False)
    notes: Mapping[str, str] = attrs.field(factory=dict, eq=False)

    @property
    def strength(self) -> tuple[int, int]:
        """What rules are compared by: the layer, then the priority."""
        return int(self.layer), self.priority

    @property
    def ref(self) -> RuleRef:
        file, line = (self.location.file, self.location.line) if self.location else (None, None)
        return RuleRef(self.id, file, line, str(self.layer), self.priority)

    def names(self, kernel_id: str) -> bool:
        """Whether the rule's ``pin``, ``restrict_to`` or ``prefer`` names this kernel."""
        patterns = self.restriction.kernels if self.restriction else self.prefer
        return any(kernel_matches(pattern, kernel_id) for pattern in patterns)

    def gives_params_to(self, kernel_id: str) -> bool:
        """Whether the rule's params are for this kernel: params beside kernels are for those kernels only."""
        return bool(self.params) and (not (self.restriction or self.prefer) or self.names(kernel_id))


@attrs.frozen
class Aspects:
    """What the rules that match one call say, aspect by aspect.

    ``matched`` holds every matching rule, strongest first. ``prefer`` holds at most one rule per layer, strongest
    layer first: a call is ordered by the first, what that leaves equal by the second, and so on down to bands.
    """

    matched: tuple[Rule, ...]
    restriction: Rule | None
    prefer: tuple[Rule, ...]
    numerics: Rule | None
    fallback: Rule | None

    def params(self, kernel_id: str) -> dict[str, tuple[Any, Rule]]:
        """The parameters for ``kernel_id``, each with the rule that gives it: per key, the strongest rule."""
        found: dict[str, tuple[Any, Rule]] = {}
        for rule in self.matched:
            if rule.gives_params_to(kernel_id):
                for name, value in rule.params.items():
                    found.setdefault(name, (value, rule))
        return found

    def preference(self, kernel_id: str) -> tuple[int, ...]:
        """A sort key: for each rule in ``prefer``, the position of the kernel in its list, or its length."""
        return tuple(
            next((i for i, pattern in enumerate(rule.prefer) if kernel_matches(pattern, kernel_id)), len(rule.prefer))
            for rule in self.prefer
        )


@attrs.frozen
class Defaults:
    """The ``defaults:`` of a policy; None and () mean "not said", and leave it to the layer below.

    ``fallback`` is what happens when no rule restricts a call and only a reference kernel is left although
    another backend serves the device: ``error``, ``warn``, ``reference``. ``ties`` orders backends, and is consulted
    only between kernels that nothing else orders.
    """

    fallback: str | None = None
    numerics: NumericsDemand | None = None
    ties: tuple[str, ...] = ()

    def over(self, base: Defaults) -> Defaults:
        ties = self.ties + tuple(b for b in base.ties if b not in self.ties)
        return Defaults(self.fallback or base.fallback, self.numerics or base.numerics, ties)


@attrs.frozen(slots=False)
class Policy:
    """Rules, defaults and a quantization section, from one file or stacked from several.

    ``quantization`` is the section as plain data, or None; ``phyai.quant`` reads it. ``source`` names the file.
    """

    rules: tuple[Rule, ...] = ()
    defaults: Defaults = attrs.field(factory=Defaults)
    profile: str | None = None
    quantization: Mapping[str, Any] | None = None
    source: str | None = None
    schema: str = SCHEMA

    @property
    def overrides(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.layer is Layer.OVERRIDE)

    @property
    def fallback(self) -> str:
        """``error``, ``warn`` or ``reference``; ``warn`` when no layer says."""
        return self.defaults.fallback or "warn"

    @property
    def relaxes_restrictions(self) -> bool:
        """Whether a ``restrict_to`` that leaves nothing usable may fall back to a reference kernel."""
        return self.fallback == "reference"

    def over(self, base: Policy) -> Policy:
        """This policy on top of ``base``: all rules of both, and whatever this one does not say from ``base``."""
        return Policy(
            rules=(*self.rules, *base.rules),
            defaults=self.defaults.over(base.defaults),
            profile=self.profile or base.profile,
            quantization=self.quantization if self.quantization is not None else base.quantization,
            source=self.source or base.source,
        )

    def with_rules(self, rules: Iterable[Rule], layer: Layer) -> Policy:
        """A copy whose rules of ``layer`` are ``rules`` (how tuning's result joins, or is replaced)."""
        added = tuple(attrs.evolve(rule, layer=layer) for rule in rules)
        return attrs.evolve(self, rules=(*(r for r in self.rules if r.layer is not layer), *added))

    def with_profile(self, profile: str) -> Policy:
        """A copy with another profile; every other part stays."""
        return attrs.evolve(self, profile=profile)

    def to_yaml(
        self, layers: Collection[Layer] = (Layer.TUNING, Layer.USER, Layer.OVERRIDE), *, base: Policy | None = None
    ) -> str:
        """The text of a policy file that says the same over ``base``; ``layers`` says whose rules it has."""
        from phyai.policy._write import policy_yaml

        return policy_yaml(self, layers, base)

    @cached_property
    def _index(self) -> RuleIndex[Rule]:
        return RuleIndex((rule, rule.match) for rule in sorted(self.rules, key=lambda r: r.strength, reverse=True))

    def matching(self, facts: Mapping[str, FactValue]) -> tuple[Rule, ...]:
        """Every rule that matches a call, strongest first, in the order of the file where equal."""
        return tuple(rule for rule in self._index.candidates(facts) if rule.match.holds(facts))

    def candidates(self, facts: Mapping[str, FactValue]) -> tuple[Rule, ...]:
        """Every rule that may match once facts which are not known yet are: a superset of :meth:`matching`."""
        return tuple(self._index.possible(facts))

    def aspects(self, facts: Mapping[str, FactValue]) -> Aspects:
        """What the matching rules say of a call, each aspect settled on its own."""
        matched = self.matching(facts)
        prefer: dict[Layer, Rule] = {}
        for rule in matched:
            if rule.prefer:
                prefer.setdefault(rule.layer, rule)
        restriction = next((r for r in matched if r.restriction), None)
        return Aspects(
            matched=matched,
            restriction=restriction,
            prefer=tuple(prefer.values()),
            numerics=next((r for r in matched if r.numerics is not None), None),
            # A fallback beside a restriction that lost was meant for that restriction alone.
            fallback=next((r for r in matched if r.fallback and (r.restriction is None or r is restriction)), None),
        )
