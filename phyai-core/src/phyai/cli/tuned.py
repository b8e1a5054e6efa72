"""What tuning found and what its stores hold, as tables and as JSON.

Functions with an ``answer`` add to it what is said as JSON, and otherwise write for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from phyai.cli.command import Context

if TYPE_CHECKING:
    from phyai.tune import Measurement, Outcome, Store, TuningLayer
    from phyai.tune.compare import Difference, Spread


def report_outcome(outcome: Outcome, context: Context, answer: dict[str, Any]) -> None:
    """What one tuning measured and what it chooses."""
    from phyai.tune.compare import lead
    from phyai.tune.key import CallKey
    from phyai.tune.layer import rule_id

    rows, data = [], []
    for chosen in outcome.layer.chosen:
        m, choice = chosen.measurement, chosen.choice
        ahead, noise = lead(m, choice)
        name = rule_id(CallKey(m.op, m.facts, m.bucket))
        verdict = "faster" if choice.changed else "stays"
        shown = f"{choice.gain:.2f}x" if choice.changed else "–"
        rows.append((name, choice.winner, verdict, shown, m.results[choice.winner].shown(), m.method))
        data.append(
            {"rule": name, "key": m.key, "kernel": choice.winner, "incumbent": choice.incumbent, "gain": choice.gain,
             "lead": ahead, "noise": noise, "method": m.method, "ranking": list(choice.ranking)}
        )  # fmt: skip
    counts = f"{len(outcome.measured)} measured, {len(outcome.known)} known, {len(outcome.skipped)} without a choice"
    late = f", {len(outcome.late)} left out for lack of time" if outcome.late else ""
    answer |= {
        "seconds": round(outcome.seconds, 3), "choices": data, "measured": len(outcome.measured),
        "known": len(outcome.known), "skipped": dict(outcome.skipped), "late": list(outcome.late),
        "stale": dict(outcome.stale), "failures": outcome.failures,
    }  # fmt: skip
    if context.json:
        return
    context.table(("calls", "kernel", "", "than before", "time", "measured by"), rows)
    context.say(f"{counts}{late}; {outcome.seconds:.1f} s")
    for key, why in outcome.stale.items():
        context.note(f"measured again, because {why}: {key}")
    for kernel, why in outcome.failures.items():
        context.note(f"disqualified: {kernel}: {why}")


def report_repeats(outcomes: Iterable[Outcome], context: Context, answer: dict[str, Any]) -> None:
    """Which choices change from one tuning to the next, and by how much."""
    from phyai.tune.compare import spread

    outcomes = tuple(outcomes)
    layers = [outcome.own for outcome in outcomes]
    compared: tuple[Spread, ...] = spread(layers)
    changing = [one for one in compared if not one.agrees]
    real = [one for one in changing if one.real]
    answer["repeat"] = {
        "times": len(layers),
        "compared": len(compared),
        "changed": [
            {"key": o.key, "choices": list(o.choices), "leads": list(o.gains), "noise": list(o.noise), "real": o.real}
            for o in changing
        ],
    }
    if context.json:
        return
    context.say(
        f"{len(layers)} tunings: {len(changing)} of {len(compared)} choices change, "
        f"{len(real)} of them by more than the noise"
    )
    for one in changing:
        leads = ", ".join(
            f"{kernel} ahead {100 * (gain - 1):+.1f}% (noise {100 * noise:.1f}%)"
            for kernel, gain, noise in zip(one.choices, one.gains, one.noise, strict=True)
        )
        context.say(f"  {one.key}: {leads}")


def report_store(store: Store, layer: TuningLayer, context: Context, answer: dict[str, Any]) -> None:
    """What a store holds, and what of it counts here."""
    measurements = store.read().measurements
    if context.json:
        answer["measurements"] = [{**m.to_json(), "counts": layer.counts(m)} for m in measurements]
        answer["stale"] = dict(layer.stale)
        return
    from phyai.tune.key import CallKey
    from phyai.tune.layer import rule_id

    context.say(f"{store.path}: {len(measurements)} measurements")
    rows = []
    for m in measurements:
        chosen = layer.of(m.key)
        name = rule_id(CallKey(m.op, m.facts, m.bucket))
        for id in _in_order(m):
            here = chosen is not None and chosen.measurement == m and chosen.choice.winner == id
            rows.append((name if id == _in_order(m)[0] else "", id, m.results[id].shown(), "chosen" if here else ""))
        under = ", ".join(f"{name} {value}" for name, value in sorted(m.stamp.items()))
        rows.append(("", f"{m.when[:19]}Z, {m.method}, {under}", "", "" if layer.counts(m) else "does not count"))
    context.table(("calls", "kernel", "time", ""), rows)
    for key, why in layer.stale.items():
        context.say(f"does not count, because {why}: {key}")


def _in_order(measurement: Measurement) -> list[str]:
    timed = measurement.usable()
    failed = [id for id in measurement.results if id not in timed]
    return [*sorted(timed, key=lambda id: timed[id].median), *failed]


def report_differences(found: Sequence[Difference], context: Context) -> None:
    """Two stores compared."""
    if context.json:
        context.emit([_difference_json(one) for one in found])
        return
    rows = []
    for one in found:
        before, after = one.fastest
        times = ", ".join(f"{id} {ratio:.2f}x" for id, ratio in sorted(one.ratios().items()))
        rows.append((one.key, before or "–", "" if before == after else (after or "–"), times))
    context.table(("calls", "fastest in A", "in B, where it differs", "time in B over time in A"), rows)
    changed = sum(1 for one in found if None not in one.fastest and len(set(one.fastest)) == 2)
    context.say(f"{len(found)} kinds of call; the fastest kernel differs at {changed}")


def _difference_json(one: Difference) -> dict[str, Any]:
    before, after = one.fastest
    return {"key": one.key, "fastest": [before, after], "ratios": dict(one.ratios())}
