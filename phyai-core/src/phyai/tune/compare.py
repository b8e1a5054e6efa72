"""Comparing tunings: two stores, or the same calls measured several times over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from phyai.tune.choose import Choice
from phyai.tune.layer import Chosen, TuningLayer
from phyai.tune.record import Measurement


@attrs.frozen
class Spread:
    """One kind of call in several tunings: what each chose, and how far the winner was ahead.

    ``gains`` is, in each tuning, the time of the best other kernel over the winner's; ``noise`` the uncertainty of that
    ratio. A choice that changes is a *real* disagreement only where the lead exceeds the noise.
    """

    key: str
    choices: tuple[str, ...]
    gains: tuple[float, ...]
    noise: tuple[float, ...]

    @property
    def agrees(self) -> bool:
        return len(set(self.choices)) == 1

    @property
    def real(self) -> bool:
        """Whether the tunings disagree, and each by more than its own noise."""
        return not self.agrees and all(g - 1 > n for g, n in zip(self.gains, self.noise, strict=True))


def spread(layers: Sequence[TuningLayer]) -> tuple[Spread, ...]:
    """Each kind of call that all of the tunings chose for."""
    by_key = [{chosen.measurement.key: chosen for chosen in layer.chosen} for layer in layers]
    common = sorted(set.intersection(*(set(found) for found in by_key))) if by_key else []
    return tuple(_spread(key, [found[key] for found in by_key]) for key in common)


def _spread(key: str, chosen: Sequence[Chosen]) -> Spread:
    leads = [lead(one.measurement, one.choice) for one in chosen]
    return Spread(key, tuple(o.choice.winner for o in chosen), tuple(g for g, _ in leads), tuple(n for _, n in leads))


def lead(measurement: Measurement, choice: Choice) -> tuple[float, float]:
    """How far the winner is ahead of the best of the others (below 1: it is not), and the noise of that ratio."""
    timed = measurement.usable()
    winner = timed[choice.winner]
    others = [timed[id] for id in choice.ranking if id != choice.winner]
    if not others:
        return 1.0, winner.noise
    best = min(others, key=lambda result: result.median)
    return best.median / winner.median, winner.noise + best.noise


@attrs.frozen
class Difference:
    """One kind of call in two stores: the newest measurement of each, None where there is none."""

    key: str
    before: Measurement | None
    after: Measurement | None

    @property
    def fastest(self) -> tuple[str | None, str | None]:
        """The kernel with the least median on either side."""
        return _fastest(self.before), _fastest(self.after)

    def ratios(self) -> Mapping[str, float]:
        """For each kernel timed on both sides, its time after over its time before."""
        if self.before is None or self.after is None:
            return {}
        old, new = self.before.usable(), self.after.usable()
        return {id: new[id].median / old[id].median for id in old if id in new}


def diff(before: Iterable[Measurement], after: Iterable[Measurement]) -> tuple[Difference, ...]:
    """Every kind of call that either store has."""
    old, new = _newest(before), _newest(after)
    return tuple(Difference(key, old.get(key), new.get(key)) for key in sorted({*old, *new}))


def _newest(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    found: dict[str, Measurement] = {}
    for measurement in sorted(measurements, key=Measurement.order):
        found[measurement.key] = measurement
    return found


def _fastest(measurement: Measurement | None) -> str | None:
    timed = measurement.usable() if measurement is not None else {}
    return min(timed, key=lambda id: timed[id].median, default=None)
