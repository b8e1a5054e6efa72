"""The order of the kernels that may run a call, and what settled it.

Preferences of rules come first, the highest layer's before the others'; what they leave equal goes by band;
inside a band fused kernels come before the decomposition, a backend's own kernels go by rank, and two backends by
``defaults.ties``. What is still
equal then is a tie, and a tie for the first place is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from phyai.composite import is_decomposition
from phyai.decision import Accepted, RuleRef
from phyai.kernel import Kernel
from phyai.policy import Aspects, Rule, kernel_matches

#: ``Decision.decided_by`` where no layer of rules decided.
CAPABILITY, BANDS, RANKS, TIES = "capability", "bands", "ranks", "ties"


@attrs.frozen
class Order:
    """Eligible kernels in order. ``tied`` holds those that nothing orders before or after the first."""

    kernels: tuple[Kernel, ...]
    accepted: tuple[Accepted, ...]
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
    positions = {k.id: tuple(_position(rule.prefer, k.id, parts) for rule in rules) for k in eligible}

    def strong(kernel: Kernel) -> tuple[object, ...]:
        chained = is_decomposition(kernel)  # inside a band, after every fused kernel
        return (_position(fallback, kernel.id, parts), positions[kernel.id], -kernel.band, chained)

    def full(kernel: Kernel) -> tuple[object, ...]:
        tie = ties.index(kernel.backend) if kernel.backend in ties else len(ties)
        return (*strong(kernel), tie, kernel.backend, -kernel.rank, kernel.id)

    ranked = sorted(eligible, key=full)
    level = [k for k in ranked if strong(k) == strong(ranked[0])]
    accepted = tuple(Accepted(k.id, i, *_why(k, aspects, positions[k.id], fallback)) for i, k in enumerate(ranked))
    return Order(tuple(ranked), accepted, _decided_by(ranked, rules, positions), _tied(level, ties))


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


def _position(patterns: Sequence[str], kernel_id: str, parts: Mapping[str, Sequence[str]]) -> int:
    """The place of a kernel in a list of patterns, or the list's length."""
    own = next((i for i, pattern in enumerate(patterns) if kernel_matches(pattern, kernel_id)), len(patterns))
    inner = [_position(patterns, part, {}) for part in parts.get(kernel_id, ())]
    return min(own, max(inner)) if inner else own


def _why(
    kernel: Kernel, aspects: Aspects, positions: tuple[int, ...], fallback: Sequence[str]
) -> tuple[str, RuleRef | None]:
    """What put the kernel where it is, in words, and the rule that did."""
    place = f"band {kernel.band.name.lower()}, rank {kernel.rank} in {kernel.backend}"
    preferring: RuleRef | None = None
    for preference, position in zip(aspects.prefer, positions, strict=True):
        if position < len(preference.prefer):
            place, preferring = f"preferred by rule {preference.ref} ({preference.prefer[position]})", preference.ref
            break
    rule = aspects.restriction
    if fallback:
        return f"fallback of a restriction that leaves nothing usable; {place}", preferring
    if rule is None or rule.restriction is None:
        return place, preferring
    if rule.restriction.pin:
        return f"pinned by rule {rule.ref}", rule.ref
    return f"allowed by rule {rule.ref}; {place}", rule.ref


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
