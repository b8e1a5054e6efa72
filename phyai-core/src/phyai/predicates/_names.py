"""A name that many globs and exclusions leave over, or the proof that there is none."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Iterable

from phyai.predicates._errors import PredicateError
from phyai.predicates._globs import Token, tokens

_MAX_STATES = 5_000


def find_name(required: Iterable[str], forbidden: Iterable[str], excluded: Collection[str] = ()) -> str | None:
    """A shortest name that matches every ``required`` pattern and no ``forbidden`` one, and is not ``excluded``.

    Each pattern is an automaton whose states are its tokens; the search runs through their product,
    breadth first. Characters that no pattern names are alike, so one stands for all of them.

    >>> find_name(["expert.*", "*.mlp"], ["*s.0.*"], ["expert.mlp"])
    'expert..mlp'
    >>> find_name(["a*"], ["*"]) is None
    True

    Raises:
        PredicateError: the product has too many states to be searched.
    """
    wanted = [tokens(pattern) for pattern in required]
    banned = [tokens(pattern) for pattern in forbidden] + [
        tuple(Token(frozenset(c)) for c in name) for name in excluded
    ]
    machines = wanted + banned
    named = sorted({char for machine in machines for token in machine for char in token.chars})
    plain = next(c for c in map(chr, (*range(ord("a"), ord("z")), *range(0x100, 0x10000))) if c not in named)
    alphabet = (plain, *named)

    @functools.cache
    def advance(n: int, state: int, char: str) -> int:
        return _advance(machines[n], state, char)

    start = tuple(_closure(machine, 1) for machine in machines)
    seen: set[tuple[int, ...]] = set()  # not the start: the empty name is none
    queue = deque([(start, "")])
    while queue:
        state, name = queue.popleft()
        for char in alphabet:
            after = tuple([advance(n, now, char) for n, now in enumerate(state)])
            if after in seen or not all(after[: len(wanted)]):  # a required pattern that is lost stays lost
                continue
            if _accepting(wanted, after) and not any(
                now >> len(machine) & 1 for machine, now in zip(banned, after[len(wanted) :], strict=True)
            ):
                return name + char
            seen.add(after)
            if len(seen) > _MAX_STATES:
                raise PredicateError(f"too many globs to compare: {', '.join((*required, *forbidden))}")
            queue.append((after, name + char))
    return None


def _accepting(machines: list[tuple[Token, ...]], state: tuple[int, ...]) -> bool:
    return all(now >> len(machine) & 1 for machine, now in zip(machines, state, strict=False))


def _closure(machine: tuple[Token, ...], state: int) -> int:
    """The positions (bits) reached without reading anything: past every star that stands next."""
    for position, token in enumerate(machine):
        if token.star and state >> position & 1:
            state |= 1 << position + 1
    return state


def _advance(machine: tuple[Token, ...], state: int, char: str) -> int:
    after = 0
    for position, token in enumerate(machine):
        if state >> position & 1:
            if token.star:
                after |= 1 << position
            elif token.takes(char):
                after |= 1 << position + 1
    return _closure(machine, after)
