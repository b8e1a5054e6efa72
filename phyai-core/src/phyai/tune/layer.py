"""Measurements as a policy layer: under the user's rules, above the shipped default.

A measurement counts where it was made on this machine as it is now, with the code that is installed now, and of every
kernel that could run the call; any other is *stale*, and said to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import attrs

from phyai.calls import with_derived
from phyai.catalog import Catalog
from phyai.composite import depth
from phyai.environment import Device, Environment
from phyai.facts import Facts
from phyai.op import Op
from phyai.policy import Layer, Policy, Rule
from phyai.predicates import Predicate, all_of, match
from phyai.tune.choose import LIVE_MARGIN, Choice, Untuned, choose, untuned
from phyai.tune.key import CallKey, condition, where
from phyai.tune.record import Measurement
from phyai.tune.stamp import differences, source_of, stamp_of
from phyai.tune.stats import MARGIN
from phyai.tune.store import file_name


@attrs.frozen
class Chosen:
    """A measurement that counts, and what follows from it."""

    measurement: Measurement
    choice: Choice
    match: Predicate


@attrs.frozen
class TuningLayer:
    """The rules that follow from a store's measurements. ``stale`` maps keys to why theirs do not count."""

    rules: tuple[Rule, ...] = ()
    chosen: tuple[Chosen, ...] = ()
    stale: Mapping[str, str] = attrs.field(factory=dict)

    def onto(self, policy: Policy) -> Policy:
        """``policy`` with these rules as its tuning layer."""
        return policy.with_rules(self.rules, Layer.TUNING)

    def counts(self, measurement: Measurement) -> bool:
        """Whether this measurement is what a rule was made of."""
        return any(chosen.measurement == measurement for chosen in self.chosen)

    def of(self, key: str) -> Chosen | None:
        return next((chosen for chosen in self.chosen if chosen.measurement.key == key), None)


def tuning_layer(
    measurements: Iterable[Measurement], catalog: Catalog, policy: Policy, environment: Environment
) -> TuningLayer:
    """The rules for calls on ``environment``'s device under ``policy``. Pure.

    Composite ops come after the ops of their parts: what they are compared with depends on what was chosen for those.
    """
    by_key: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        by_key.setdefault(measurement.key, []).append(measurement)
    known = [ms for ms in by_key.values() if ms[0].op in catalog.aliases]
    layer = TuningLayer(stale={ms[0].key: "no such op is installed" for ms in by_key.values() if ms not in known})
    plain = policy.with_rules((), Layer.TUNING)
    depths = [depth(catalog.op(measurements[0].op).parts) for measurements in known]
    for level in sorted(set(depths)):
        group = [measurements for own, measurements in zip(depths, known, strict=True) if own == level]
        layer = _with(layer, group, catalog, layer.onto(plain), environment)
    return layer


def _with(
    layer: TuningLayer, group: list[list[Measurement]], catalog: Catalog, policy: Policy, environment: Environment
) -> TuningLayer:
    chosen, stale = list(layer.chosen), dict(layer.stale)
    for measurements in group:
        found = judge(measurements, catalog, policy, environment)
        if isinstance(found, Chosen):
            chosen.append(found)
        elif found is not None:
            stale[measurements[0].key] = found
    here = match(where(environment))
    rules = sorted((_rule(one, here) for one in chosen), key=lambda rule: rule.id)
    return TuningLayer(tuple(rules), tuple(chosen), stale)


def judge(
    measurements: Iterable[Measurement], catalog: Catalog, policy: Policy, environment: Environment
) -> Chosen | str | None:
    """What follows from the measurements of one kind of call: the newest that counts, else why none does.

    None where there is nothing to choose: at most one kernel may run the call under the policy.
    """
    why = None
    for measurement in sorted(measurements, key=_preference, reverse=True):
        facts = facts_of(measurement, catalog.op(measurement.op), environment)
        candidates = untuned(facts, catalog, policy, environment)
        if len(candidates.kernels) < 2:
            return None
        problem = staleness(measurement, candidates, catalog, environment)
        if problem is None:
            margin = LIVE_MARGIN if measurement.method == "live" else MARGIN
            choice = choose(measurement.results, candidates, margin=margin)
            if choice is not None:
                key = CallKey(measurement.op, measurement.facts, measurement.bucket)
                return Chosen(measurement, choice, condition(key, facts, measurement.results, catalog, environment))
            problem = "no candidate could be timed"
        why = why or problem
    return why


def _preference(measurement: Measurement) -> tuple[bool, tuple[str, str]]:
    """What was timed in the model counts before what was timed beside it."""
    return measurement.method == "live", measurement.order()


def facts_of(measurement: Measurement, op: Op, environment: Environment) -> Facts:
    """The facts of the call of ``op`` that was measured, on the device at hand, with those that the op derives."""
    dims = {f"shape.{name}": size for name, size in measurement.at.items() if f"shape.{name}" in measurement.bucket}
    static = {name: value for name, value in measurement.facts.items() if value is not None}
    return with_derived(op, {"op": op.name, **environment.facts(), **static, **dims})


def staleness(measurement: Measurement, candidates: Untuned, catalog: Catalog, environment: Environment) -> str | None:
    """Why a measurement does not count, or None."""
    kernels = [catalog.kernel(id) for id in measurement.results if catalog.has_kernel(id)]
    changed = differences(measurement.stamp, stamp_of(environment, kernels))
    if changed:
        return "; ".join(changed)
    for kernel in candidates.kernels:
        result = measurement.results.get(kernel.id)
        if result is None:
            return f"{kernel.id} may run the call and was not measured"
        if result.source != source_of(kernel, catalog, candidates.parts, candidates.params.get(kernel.id, "")):
            return f"the code of {kernel.id}, or what it is given, has changed"
    return None


def _rule(chosen: Chosen, here: Predicate) -> Rule:
    measurement = chosen.measurement
    key = CallKey(measurement.op, measurement.facts, measurement.bucket)
    return Rule(
        id=rule_id(key),
        match=all_of(chosen.match, here),
        prefer=chosen.choice.ranking,
        layer=Layer.TUNING,
        notes=chosen.choice.notes,
    )


def section_of(device: Device) -> str:
    """What the rules that were measured on a device are filed under in a policy file: each device has its own.

    >>> section_of(Device("cuda", name="NVIDIA H200", arch="sm90"))
    'tuned-nvidia-h200-sm90'
    """
    return f"tuned-{file_name(device).removesuffix('.json')}"


def rule_id(key: CallKey) -> str:
    """A name for the rule of a key: what people look for, then a hash of the rest.

    >>> rule_id(CallKey("gemm", {"role": "expert", "shape.K": 64, "shape.N": 32}, {"shape.M": (33, 64)}))
    'gemm/expert/M33-64.K64.N32/d075ea'
    """
    sizes = [
        f"{name[6:]}{low}-{high}" if high > low else f"{name[6:]}{low}" for name, (low, high) in key.bucket.items()
    ]
    sizes += [f"{name[6:]}{value}" for name, value in key.facts.items() if name.startswith("shape.")]
    scheme = key.facts.get("quant.scheme")
    parts = [key.op, str(key.facts.get("role") or "any"), ".".join(sizes), *([str(scheme)] if scheme else [])]
    return "/".join([*filter(None, parts), hashlib.sha256(key.text.encode()).hexdigest()[:6]])
