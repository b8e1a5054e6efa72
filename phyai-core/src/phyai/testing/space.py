"""The calls that one kernel claims: which values each fact may take, and the nearest call that a predicate accepts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from phyai.dims import dim_names, dim_size
from phyai.environment import Environment
from phyai.errors import PhyAIError
from phyai.facts import FactKind, FactSpec, Vocabulary
from phyai.op import ArgSpec, Op
from phyai.predicates import FALSE, AnyOf, Literal, Predicate
from phyai.predicates._domains import Absent, find_value
from phyai.quant.formats import PLAIN, QuantFormat, holding
from phyai.quant.scheme import QuantScheme
from phyai.testing.case import Case, quant_facts, quantizable
from phyai.testing.schemes import schemes
from phyai.testing.values import interesting

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]

#: Sizes at which kernels tend to go wrong: around multiples of warps, tiles and vectors.
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 65, 96, 128, 129, 256, 512, 1024)
_ROUNDS = 6
_QUANTIZATIONS = 400
#: Where the facts of quantized weights are: a call's own, or those of its parts.
_QUANT = ("quant.", "parts.")


def first(options: Sequence[T]) -> T:
    return options[0]


@attrs.frozen(eq=False)
class Space:
    """The calls of ``op`` that ``when`` accepts on a machine, none bigger than ``elements`` tensor elements.

    A call that no smaller one can stand for may be bigger: the bound is on what is chosen, not on what is claimed.
    """

    op: Op
    when: Predicate
    environment: Environment
    vocabulary: Vocabulary
    elements: int = 1 << 17
    layouts: tuple[str, ...] = ("plain",)
    formats: tuple[QuantFormat, ...] = ()

    @functools.cached_property
    def fixed(self) -> dict[str, Any]:
        """The facts that no call can change."""
        return {"op": self.op.name, "mode.capture": False, **self.environment.facts()}

    @functools.cached_property
    def claim(self) -> Predicate:
        """What is left of ``when`` on this machine; FALSE where it holds for no call."""
        return self.when.given(self.fixed, absent=_Below(("device.", "lib."), self.fixed))

    @property
    def reachable(self) -> bool:
        return self.claim != FALSE

    def facts(self, case: Case) -> Mapping[str, Any] | None:
        return case.call_facts(self.op, self.environment.facts())

    def holds(self, case: Case) -> bool:
        """Whether the call is claimed, and its weight can be brought into its layout."""
        facts = self.facts(case)
        return facts is not None and self.when.holds(facts) and self._packable(case, facts)

    def _packable(self, case: Case, facts: Mapping[str, Any]) -> bool:
        return case.layout in (None, PLAIN) or self.format_of(case, facts) is not None

    def format_of(self, case: Case, facts: Mapping[str, Any]) -> QuantFormat | None:
        """The format that packs every quantized weight of the call into its layout; None where there is none."""
        found = [
            holding(self.formats, case.layout, self._weight_facts(case, facts, name, prefix))
            for name, prefix in quantizable(self.op).items()
        ]
        return found[0] if found and all(one is found[0] for one in found) else None

    def _weight_facts(self, case: Case, facts: Mapping[str, Any], name: str, prefix: str) -> Mapping[str, Any]:
        """The facts of the product that reads one weight, as far as formats ask for them."""
        n, k = (dim_size(d, case.dims) for d in next(t for t in self.op.weights if t.name == name).dims)
        own = {fact.removeprefix(prefix): value for fact, value in facts.items() if fact.startswith(prefix)}
        return {**facts, **own, "shape.N": n, "shape.K": k}

    @functools.cached_property
    def bases(self) -> tuple[Case, ...]:
        """Calls to start from: the op's argument specs, small ones first."""
        specs = self.op.arg_specs or (_made_up(self.op),)
        cases = sorted((Case.of(self.op, spec).fitted(self.op) for spec in specs), key=self.cost)
        return tuple(itertools.takewhile(lambda case: self.cost(case) <= self.elements, cases)) or tuple(cases[:1])

    def cost(self, case: Case) -> int:
        """How much work a call is, roughly: its tensors' elements, and one for every 64 that are multiplied."""
        sizes = [math.prod(dim_size(d, case.dims) for d in t.dims) for t in self.op.tensors if t.name in case.dtypes]
        shown = {name for t in self.op.inputs + self.op.weights for name in dim_names(t)}
        return sum(sizes) + math.prod(size for name, size in case.dims.items() if name in shown) // 64

    # The values of one fact

    def spec(self, fact: str) -> FactSpec | None:
        return self.vocabulary.find(fact)

    @functools.cache  # noqa: B019 - a space lives as long as its kernel is being tested
    def values(self, fact: str) -> tuple[Any, ...]:
        """Candidates for a fact that calls can change, simple ones first; None where it may be absent."""
        literals = [literal for literal in self.when.literals() if literal.fact == fact]
        kind, _, name = fact.partition(".")
        found: list[Any] = []
        spec = self.spec(fact)
        if kind == "shape":
            least = spec.minimum if spec else 1
            found = [v for v in (least, *SIZES, *interesting(literals)) if isinstance(v, int) and v >= least]
            return tuple(sorted(dict.fromkeys(found)))
        if kind == "dtype":
            tensor = next(t for t in self.op.tensors if t.name == name)
            return (*((None,) if tensor.optional else ()), *tensor.dtypes)
        if kind == "attrs":
            attribute = next((a for a in self.op.attributes if a.name == name), None)
            if attribute is not None:
                found = [attribute.default, *(attribute.values or ())]
                found += [s.attrs[name] for s in self.op.arg_specs if name in s.attrs]
                found += [False, True] if attribute.kind is FactKind.FLAG and not attribute.values else []
                if attribute.kind is FactKind.NUMBER and not attribute.values:
                    found += interesting(literals)
                return tuple(v for v in dict.fromkeys(found) if attribute.allows(v))
        return tuple(dict.fromkeys(v for literal in literals for v in getattr(literal, "values", ())))

    @property
    def knobs(self) -> tuple[str, ...]:
        """The facts that calls of this op can be given, one at a time."""
        tensors = [f"dtype.{t.name}" for t in self.op.tensors]
        return (*(f"shape.{d.name}" for d in self.op.dims), *tensors, *(f"attrs.{a.name}" for a in self.op.attributes))

    def set(self, case: Case, fact: str, value: Any) -> Case:
        """The call with one fact changed, and what follows from it."""
        kind, _, name = fact.partition(".")
        if kind == "shape" and name in {d.name for d in self.op.dims}:
            return attrs.evolve(case, dims={**case.dims, name: value}).fitted(self.op)
        if kind == "attrs" and name in {a.name for a in self.op.attributes}:
            return attrs.evolve(case, attrs={**case.attrs, name: value}).fitted(self.op)
        if kind == "dtype":
            tensor = next(t for t in self.op.tensors if t.name == name)
            dtypes = {n: d for n, d in case.dtypes.items() if n != name} | ({name: value} if value else {})
            present = tuple(n for n in case.present if n != name) + ((name,) if tensor.optional and value else ())
            return attrs.evolve(case, dtypes=dtypes, present=present).fitted(self.op)
        facts = {n: v for n, v in case.facts.items() if n != fact} | ({} if value is None else {fact: value})
        return attrs.evolve(case, facts=facts)

    # Calls that are claimed

    def satisfy(self, case: Case, choose: Choose = first, locked: Iterable[str] = ()) -> Case | None:
        """The nearest call that ``when`` accepts, with the ``locked`` facts as they are; None where none was found.

        ``choose`` picks between alternatives.
        """
        if not self._quantizable(case.scheme, case.layout):
            if not self.quantizations:
                return None
            case = case.quantized(self.op, *choose(self.quantizations))
        held = frozenset(locked)
        for _ in range(_ROUNDS):
            facts = self.facts(case)
            if facts is not None and self.when.holds(facts):
                return case if self._packable(case, facts) else None
            known = facts or {}
            kept = {name: value for name, value in known.items() if name in held or "quant." in name}
            claim = self.claim.given(kept, absent=_Below(_QUANT, (*kept, *known), held))
            if claim == FALSE:
                return None
            changed = self._repair(case, known, _branch(claim, known, choose), choose)
            if changed is None or changed == case:
                return None
            case = changed
        return None

    def _repair(self, case: Case, facts: Mapping[str, Any], wanted: Sequence[Literal], choose: Choose) -> Case | None:
        by_fact: dict[str, list[Literal]] = {}
        for literal in wanted:
            by_fact.setdefault(literal.fact, []).append(literal)
        for fact, literals in by_fact.items():
            if all(literal.holds(facts) for literal in literals):
                continue
            changed = self._give(case, fact, literals, choose)
            if changed is None:
                return None
            case = changed
        return case

    def _give(self, case: Case, fact: str, literals: Sequence[Literal], choose: Choose) -> Case | None:
        """The call with an acceptable value of one fact."""
        kind, _, name = fact.partition(".")
        own = {dim.name for dim in self.op.dims} if kind == "shape" else {a.name for a in self.op.attributes}
        derived = kind in ("shape", "attrs") and name not in own
        if derived:
            return self._derive(case, fact, literals)
        options = [v for v in self.values(fact) if all(literal.accepts(v) for literal in literals)]
        if options:
            return self.set(case, fact, options[0] if kind == "shape" else choose(options))
        spec = self.spec(fact)
        value = find_value(tuple(literals), spec) if spec is not None else None
        if value is None:
            return None
        return self.set(case, fact, None if isinstance(value, Absent) else value)

    def _derive(self, case: Case, fact: str, literals: Sequence[Literal]) -> Case | None:
        """A call that differs in one knob, with an acceptable value of a fact that follows from others."""
        sizes = tuple(dict.fromkeys(case.dims.values()))
        for knob in self.knobs:
            extra = sizes if knob.startswith("shape.") else ()
            for value in (*extra, *self.values(knob)):
                changed = self.set(case, knob, value)
                facts = self.facts(changed)
                if facts is not None and all(literal.holds(facts) for literal in literals):
                    return changed
        spec = self.spec(fact)
        if spec is None or self.op.derive is not None:
            return None
        value = find_value(tuple(literals), spec)  # said by the model, not derived: shape.heads of rms_norm
        return self.set(case, fact, value) if value is not None and not isinstance(value, Absent) else None

    @functools.cached_property
    def quantizations(self) -> tuple[tuple[QuantScheme | None, str | None], ...]:
        """What the weight may be: a scheme and a layout, or neither; only the first of the very many."""
        pairs = ((scheme, layout) for scheme, _ in self.schemes for layout in self.layouts)
        fitting = (pair for pair in ((None, None), *pairs) if self._quantizable(*pair))
        return tuple(itertools.islice(fitting, _QUANTIZATIONS))

    @functools.cache  # noqa: B019 - as above
    def _quantizable(self, scheme: QuantScheme | None, layout: str | None) -> bool:
        """Whether some call with such a weight is claimed."""
        facts = quant_facts(self.op, scheme, layout)
        return self.claim.given(facts, absent=_Below(_QUANT, facts)) != FALSE

    @functools.cached_property
    def schemes(self) -> tuple[tuple[QuantScheme, Mapping[str, Any]], ...]:
        """Quantization schemes to choose from, with their facts."""
        return schemes(self.when)


class _Below:
    """The names that begin with one of ``prefixes``, and those in ``more``, but not those that are ``known``."""

    def __init__(self, prefixes: tuple[str, ...], known: Iterable[str], more: Iterable[str] = ()) -> None:
        self._prefixes, self._known, self._more = prefixes, frozenset(known), frozenset(more)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name in self._known:
            return False
        return name in self._more or name.startswith(self._prefixes)


def _branch(predicate: Predicate, facts: Mapping[str, Any], choose: Choose) -> list[Literal]:
    """The literals that must hold, on one way of making ``predicate`` hold: alternatives that hold stay."""
    if isinstance(predicate, Literal):
        return [predicate]
    parts: Iterator[Predicate] = iter(getattr(predicate, "parts", ()))
    if isinstance(predicate, AnyOf):
        options = list(parts)
        held = next((part for part in options if part.holds(facts)), None)
        return _branch(held if held is not None else choose(options), facts, choose)
    return [literal for part in parts for literal in _branch(part, facts, choose)]


def _made_up(op: Op) -> ArgSpec:
    """A spec for an op that has none."""
    dtypes = {t.name: t.dtypes[0] for t in op.tensors if not t.optional}
    try:
        return ArgSpec("made.up", {dim.name: max(dim.minimum, 4) for dim in op.dims}, dtypes)
    except (IndexError, TypeError) as error:
        raise PhyAIError(f"op {op.name} has no argument specs, and none can be made up: {error}") from None
