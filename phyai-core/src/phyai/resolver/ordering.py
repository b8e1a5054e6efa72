"""The order of the kernels that may run a call, and what settled it.

Preferences of rules come first, the highest layer's before the others'; what they leave equal goes by the bands that
kernels have on this call; inside a band fused kernels come before the decomposition, a backend's own kernels go by
rank, and two backends by ``defaults.ties``. What is still equal then is a tie, and a tie for the first place is an
error. In the reference band a backend that ``defaults.ties`` does not list ties with none that it lists: it comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from phyai.composite import BACKEND as DECOMPOSED
from phyai.composite import is_decomposition
from phyai.decision import Accepted, RuleRef
from phyai.facts import FactValue
from phyai.kernel import Band, Kernel
from phyai.policy import Aspects, Rule, kernel_matches
from phyai.resolver.parts import Parts

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
    facts: Mapping[str, FactValue],
    aspects: Aspects,
    ties: Sequence[str],
    parts: Parts,
    fallback: Sequence[str] = (),
) -> Order:
    """Order ``eligible`` kernels of a call with ``facts``, of which there is at least one.

    ``parts`` are those of a composite op: a preference that names the kernels that they resolve to, or those of them
    that are a matter of it, names the decomposition. ``fallback`` are the patterns, in order, that a restriction was
    relaxed to.
    """
    of_rules = [_positions(rule.prefer, parts.names(rule)) for rule in aspects.prefer]
    of_fallback = _positions(fallback, parts.kernel_ids)
    tie_of = {backend: place for place, backend in enumerate(ties)}
    rows = []
    for kernel in eligible:
        id, backend = kernel.id, kernel.backend
        places = tuple([position(kernel) for position in of_rules])
        band = kernel.band_on(facts) if kernel.bands else kernel.band  # few have any
        strong = (of_fallback(kernel) if fallback else 0, places, -band, _standing(backend, band, tie_of))
        rows.append((strong, tie_of.get(backend, len(ties)), backend, -kernel.rank, id, kernel))
    rows.sort()  # ids are unique, so that kernels are never compared
    level = [row[-1] for row in rows if row[0] == rows[0][0]]

    def accepted() -> tuple[Accepted, ...]:
        why = _reasons(facts, aspects, fallback)
        return tuple(Accepted(row[-1].id, i, *why(row[-1], row[0][1])) for i, row in enumerate(rows))

    first, second = (rows * 2)[:2]
    decided_by = _decided_by((first[-1], *first[0][1:3]), (second[-1], *second[0][1:3]), aspects.prefer)
    return Order(tuple(row[-1] for row in rows), accepted, decided_by, _tied(level, ties))


def _standing(backend: str, band: Band, tie_of: Mapping[str, int]) -> int:
    """All that orders backends inside a band: the decomposition comes after every fused kernel, and what nobody should
    get by accident after both."""
    if backend == DECOMPOSED:
        return 1
    return 2 if band is Band.REFERENCE and tie_of and backend not in tie_of else 0


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


def _positions(patterns: Sequence[str], inner: Sequence[str]) -> Callable[[Kernel], int]:
    """The place of a kernel in a list of patterns, or the list's length; of a decomposition, by the kernels in it."""
    last = len(patterns)

    def own(id: str) -> int:
        for i, pattern in enumerate(patterns):
            if kernel_matches(pattern, id):
                return i
        return last

    of_inner = max(map(own, inner), default=last)
    return lambda kernel: min(own(kernel.id), of_inner) if is_decomposition(kernel) else own(kernel.id)


def _reasons(
    facts: Mapping[str, FactValue], aspects: Aspects, fallback: Sequence[str]
) -> Callable[[Kernel, tuple[int, ...]], tuple[str, RuleRef | None]]:
    """What put a kernel where it is, in words, and the rule that did."""
    rule = aspects.restriction
    restriction = rule.restriction if rule is not None else None
    ref = rule.ref if rule is not None else None
    preferring = [(len(r.prefer), r.prefer, r.ref, r.notes) for r in aspects.prefer]

    def why(kernel: Kernel, places: tuple[int, ...]) -> tuple[str, RuleRef | None]:
        place = f"{_band(kernel, facts)}, rank {kernel.rank} in {kernel.backend}"
        by: RuleRef | None = None
        for position, (length, patterns, preference, notes) in zip(places, preferring, strict=True):
            if position < length:
                note = notes.get(kernel.id) or patterns[position]
                place, by = f"preferred by rule {preference} ({note})", preference
                break
        if fallback:
            return f"fallback of a restriction that leaves nothing usable; {place}", by
        if restriction is None:
            return place, by
        if restriction.pin:
            return f"pinned by rule {ref}", ref
        return f"allowed by rule {ref}; {place}", ref

    return why


def _band(kernel: Kernel, facts: Mapping[str, FactValue]) -> str:
    """The band that a kernel has on a call, and why it is that one where it is not the same on all calls."""
    here = kernel.band_on(facts)
    better = [f"not {band.name.lower()}: {where.why_not(facts)}" for band, where in kernel.bands if band > here]
    where = dict(kernel.bands).get(here)
    said = f"band {here.name.lower()}" + (f" where {where}" if where is not None else "")
    return f"{said} ({'; '.join(better)})" if better else said


def _decided_by(
    first: tuple[Kernel, tuple[int, ...], int], second: tuple[Kernel, tuple[int, ...], int], rules: Sequence[Rule]
) -> str:
    """The layer by which the first kernel, with its places in the rules' lists and in the bands, stands before the
    second."""
    (winner, places, band), (runner_up, others, other_band) = first, second
    if winner is runner_up:
        return CAPABILITY
    for rule, a, b in zip(rules, places, others, strict=True):
        if a != b:
            return str(rule.layer)
    if band != other_band or is_decomposition(runner_up):
        return BANDS
    return RANKS if winner.backend == runner_up.backend else TIES
