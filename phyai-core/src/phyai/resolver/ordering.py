"""The order of the kernels that may run a call, and what settled it.

Preferences of rules come first, the highest layer's before the others'; what they leave equal goes by band;
inside a band fused kernels come before the decomposition, a backend's own kernels go by rank, and two backends by
``defaults.ties``. What is still
equal then is a tie, and a tie for the first place is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from phyai.composite import BACKEND as DECOMPOSED
from phyai.composite import is_decomposition
from phyai.decision import Accepted, RuleRef
from phyai.kernel import Band, Kernel
from phyai.policy import Aspects, Rule, kernel_matches

_BANDS = tuple(f"band {band.name.lower()}" for band in sorted(Band))

#: ``Decision.decided_by`` where no layer of rules decided.
CAPABILITY, BANDS, RANKS, TIES = "capability", "bands", "ranks", "ties"


@attrs.frozen
class Order:
    """Eligible kernels in order; ``accepted`` says why. ``tied`` are those that nothing orders with the first."""

    kernels: tuple[Kernel, ...]
    accepted: Callable[[], tuple[Accepted, ...]]
    decided_by: str
    tied: tuple[Kernel, ...] = ()


def order(
    eligible: Sequence[Kernel],
    aspects: Aspects,
    ties: Sequence[str],
    parts: Mapping[str, Sequence[str]],
    fallback: Sequence[str] = (),
) -> Order:
    """Order ``eligible`` kernels, of which there is at least one.

    ``parts`` maps a decomposition's id to the kernels that its parts resolve to: a preference that names
    all of them names it. ``fallback`` are the patterns, in order, that a restriction was relaxed to.
    """
    rules = aspects.prefer
    of_rules = [_positions(rule.prefer, parts) for rule in rules]
    of_fallback = _positions(fallback, parts)
    tie_of = {backend: place for place, backend in enumerate(ties)}
    places: dict[str, tuple[int, ...]] = {}  # in each rule's list
    strong: dict[str, tuple[object, ...]] = {}  # all that orders kernels of different backends
    full: dict[str, tuple[object, ...]] = {}
    for kernel in eligible:
        id, backend = kernel.id, kernel.backend
        places[id] = tuple([position(id) for position in of_rules])
        # Inside a band, the decomposition comes after every fused kernel.
        strong[id] = (of_fallback(id) if fallback else 0, places[id], -kernel.band, backend == DECOMPOSED)
        full[id] = (*strong[id], tie_of.get(backend, len(ties)), backend, -kernel.rank, id)
    ranked = sorted(eligible, key=lambda k: full[k.id])
    level = [k for k in ranked if strong[k.id] == strong[ranked[0].id]]

    def accepted() -> tuple[Accepted, ...]:
        why = _reasons(aspects, fallback)
        return tuple(Accepted(k.id, i, *why(k, places[k.id])) for i, k in enumerate(ranked))

    return Order(tuple(ranked), accepted, _decided_by(ranked, rules, places), _tied(level, ties))


def _tied(level: Sequence[Kernel], ties: Sequence[str]) -> tuple[Kernel, ...]:
    """The kernels that nothing orders before or after the first of ``level``: empty where there is no tie.

    Between backends a tie is settled when ``ties`` lists all of them; inside one, by rank.
    """
    heads: dict[str, Kernel] = {}
    for kernel in level:
        heads.setdefault(kernel.backend, kernel)
    unsettled = [k for backend, k in heads.items() if backend not in ties]
    if len(heads) > 1 and unsettled:
        settled = [k for backend, k in heads.items() if backend in ties]
        return (*settled[:1], *unsettled)
    first = level[0]
    alike = tuple(k for k in level if k.backend == first.backend and k.rank == first.rank)
    return alike if len(alike) > 1 else ()


def _positions(patterns: Sequence[str], parts: Mapping[str, Sequence[str]]) -> Callable[[str], int]:
    """The place of a kernel in a list of patterns, or the list's length."""
    last = len(patterns)

    def own(id: str) -> int:
        for i, pattern in enumerate(patterns):
            if kernel_matches(pattern, id):
                return i
        return last

    def position(id: str) -> int:
        inner = parts.get(id)
        return min(own(id), max(map(own, inner))) if inner else own(id)

    return position if parts else own


def _reasons(
    aspects: Aspects, fallback: Sequence[str]
) -> Callable[[Kernel, tuple[int, ...]], tuple[str, RuleRef | None]]:
    """What put a kernel where it is, in words, and the rule that did."""
    rule = aspects.restriction
    restriction = rule.restriction if rule is not None else None
    ref = rule.ref if rule is not None else None
    preferring = [(len(r.prefer), r.prefer, r.ref) for r in aspects.prefer]

    def why(kernel: Kernel, places: tuple[int, ...]) -> tuple[str, RuleRef | None]:
        place = f"{_BANDS[kernel.band]}, rank {kernel.rank} in {kernel.backend}"
        by: RuleRef | None = None
        for position, (length, patterns, preference) in zip(places, preferring, strict=True):
            if position < length:
                place, by = f"preferred by rule {preference} ({patterns[position]})", preference
                break
        if fallback:
            return f"fallback of a restriction that leaves nothing usable; {place}", by
        if restriction is None:
            return place, by
        if restriction.pin:
            return f"pinned by rule {ref}", ref
        return f"allowed by rule {ref}; {place}", ref

    return why


def _decided_by(ranked: Sequence[Kernel], rules: Sequence[Rule], positions: Mapping[str, tuple[int, ...]]) -> str:
    """The layer by which the first kernel stands before the second."""
    if len(ranked) == 1:
        return CAPABILITY
    first, second = ranked[:2]
    for rule, a, b in zip(rules, positions[first.id], positions[second.id], strict=True):
        if a != b:
            return str(rule.layer)
    if first.band != second.band or is_decomposition(second):
        return BANDS
    return RANKS if first.backend == second.backend else TIES
