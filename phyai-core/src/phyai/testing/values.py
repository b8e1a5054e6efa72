"""Values of a number at which a predicate can change its mind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phyai.predicates import Compare, Literal, MultipleOf, OneOf

Number = int | float


def interesting(literals: Iterable[Literal]) -> Iterator[Number]:
    """Bounds and one to each side of them, odd and even multiples of moduli and one beside them, members.

    >>> from phyai.predicates import match
    >>> sorted(set(interesting(match({"shape.K": "%16"}).literals())))
    [16, 17, 32, 48, 80, 112]
    """
    for literal in literals:
        if isinstance(literal, MultipleOf):
            yield from (literal.modulus * factor for factor in (1, 2, 3, 5, 7))
            yield literal.modulus + 1
        elif isinstance(literal, OneOf):
            for value in literal.values:
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    yield from (value, value + 1)
        elif isinstance(literal, Compare) and isinstance(literal.bound, (int, float)):
            yield from (literal.bound - 1, literal.bound, literal.bound + 1)
