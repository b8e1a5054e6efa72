"""Whether two predicates can hold together, and a call on which they do.

A search over the alternatives (``any_of``), with an exact test per fact: the literals that must hold are
grouped by fact, and each group has a value or the branch is dead. Alternatives and implications that the
values found so far satisfy by themselves are never branched on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from phyai.facts import FactKind, Facts, FactSpec, FactValue, Vocabulary
from phyai.predicates._algebra import TRUE, AnyOf, Literal, Predicate, conjuncts
from phyai.predicates._domains import Absent, find_value
from phyai.predicates._errors import PredicateError
from phyai.predicates._literals import OneOf
from phyai.predicates._signature import IMPLICATIONS, OWNED, Implication, Signature
from phyai.predicates._values import declared

#: Facts on which both predicates hold.
Witness = Facts

_MAX_STEPS = 2_000


def intersect(
    p: Predicate,
    q: Predicate,
    *,
    given: Predicate = TRUE,
    vocabulary: Vocabulary | None = None,
    signatures: Mapping[str, Signature] | None = None,
    implications: Sequence[Implication] = IMPLICATIONS,
) -> Witness | None:
    """Facts on which ``p``, ``q`` and ``given`` all hold; None when there are none.

    The answer is exact over the facts' domains: numbers from :attr:`FactSpec.minimum` up (whole ones where
    the fact is whole), the names that a declaration lists or any non-empty name, versions in PEP 440's
    order, architectures that exist or are named.

    Args:
        given: what is known besides.
        vocabulary: declarations of facts; those of the core and of the usual prefixes hold without one.
        signatures: by op. With them, a witness has an op, every fact that all calls of that op carry, and
            no ``shape.*``, ``dtype.*`` or ``attrs.*`` that it does not declare.
        implications: what facts say of others.

    Raises:
        PredicateError: the alternatives are too many to be searched.

    >>> from phyai.predicates import match
    >>> intersect(match({"op": "gemm", "role": "expert"}), match({"op": "gemm", "quant.layout": "humming"}))
    Facts({'op': 'gemm', 'role': 'expert', 'quant.layout': 'humming'})
    >>> intersect(match({"shape.D": "%16"}), match({"none_of": [{"shape.D": "%8"}]})) is None
    True
    """
    if _obviously_disjoint(p, q):
        return None
    search = _Search(vocabulary)
    wanted = [
        *conjuncts(p),
        *conjuncts(q),
        *conjuncts(given),
        *(part for rule in implications for part in conjuncts(rule.either)),
    ]
    if signatures is None:
        return search.run(wanted)
    for name in _ops(wanted, signatures):
        search.signature = signatures.get(name)
        found = search.run((OneOf("op", FactKind.NAME, (name,)), *wanted))
        if found is not None:
            return found
    return None


def _obviously_disjoint(p: Predicate, q: Predicate) -> bool:
    """Whether some fact must have a value from one list for ``p`` and from another for ``q``: most pairs end here."""
    ours = conjuncts(p)
    for theirs in conjuncts(q):
        if isinstance(theirs, OneOf) and not theirs.negated:
            for part in ours:
                if (
                    isinstance(part, OneOf)
                    and part.fact == theirs.fact
                    and not part.negated
                    and not any(value in part.values for value in theirs.values)
                ):
                    return True
    return False


def _ops(wanted: Iterable[Predicate], signatures: Mapping[str, Signature]) -> Iterator[str]:
    """The ops that may satisfy ``wanted``: those with a signature, and those that are named."""
    about = [literal for part in wanted for literal in part.literals() if literal.fact == "op"]
    required = [part for part in wanted if isinstance(part, Literal) and part.fact == "op"]
    named = [str(v) for literal in about if isinstance(literal, OneOf) for v in literal.values]
    for literal in required:
        if isinstance(literal, OneOf) and not literal.negated:
            named = [str(v) for v in literal.values]
            break
    else:
        named += signatures
    for name in dict.fromkeys(named):
        if all(literal.accepts(name) for literal in required):
            yield name


@attrs.define
class _Node:
    """What must hold, by fact, with a value for each; and the alternatives that are still to be met."""

    literals: dict[str, tuple[Literal, ...]]
    values: dict[str, FactValue | Absent]
    choices: tuple[AnyOf, ...]


@attrs.define
class _Search:
    vocabulary: Vocabulary | None
    signature: Signature | None = None
    steps: int = 0

    def run(self, wanted: Iterable[Predicate]) -> Witness | None:
        root = self.extend(_Node({}, {}, ()), wanted)
        return None if root is None else self.solve(root)

    def solve(self, node: _Node) -> Witness | None:
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise PredicateError(f"too many alternatives to compare; the last are {', '.join(map(str, node.choices))}")
        witness = self.witness(node)
        best: list[_Node] | None = None
        for choice in node.choices:
            if choice.holds(witness):
                continue
            rest = attrs.evolve(node, choices=tuple(c for c in node.choices if c is not choice))
            live = [n for n in (self.extend(rest, conjuncts(branch)) for branch in choice.parts) if n is not None]
            if best is None or len(live) < len(best):
                best = live
            if len(best) < 2:
                break
        if best is None:
            return witness
        for branch in best:
            found = self.solve(branch)
            if found is not None:
                return found
        return None

    def witness(self, node: _Node) -> Witness:
        facts: dict[str, FactValue] = {} if self.signature is None else dict(self.signature.defaults)
        facts.update({name: v for name, v in node.values.items() if not isinstance(v, Absent)})
        return Facts(facts)

    def extend(self, node: _Node, wanted: Iterable[Predicate]) -> _Node | None:
        """The node with more that must hold; None when one fact has no value left."""
        more: dict[str, tuple[Literal, ...]] = {}
        choices = node.choices
        for part in wanted:
            if isinstance(part, Literal):
                before = more.get(part.fact) or node.literals.get(part.fact, ())
                if part not in before:
                    more[part.fact] = (*before, part)
            else:
                assert isinstance(part, AnyOf)  # normalised: an AllOf has no AllOf in it
                choices = (*choices, part)
        values = dict(node.values)
        for fact, literals in more.items():
            value = self.value(fact, literals)
            if value is None:
                return None
            values[fact] = value
        return _Node({**node.literals, **more}, values, choices)

    def value(self, fact: str, literals: tuple[Literal, ...]) -> FactValue | Absent | None:
        """A value for one fact, of those that the op and the declarations allow."""
        spec: FactSpec | None = None
        owned = self.signature is not None and fact.startswith(OWNED)
        if owned and self.signature is not None:
            spec = self.signature.declared.get(fact)
        undeclared = owned and spec is None
        if spec is None:
            spec = declared(fact, self.vocabulary) or FactSpec(fact, FactKind.NAME, "", integer=False)
        found = find_value(literals, spec)
        if isinstance(found, Absent):
            required = self.signature is not None and fact in self.signature.defaults
            return None if required else found
        return None if undeclared else found
