"""``profile: autotune``: the policy with what the store says as its tuning layer, and every other part as it was."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.policy import Policy
from phyai.tune.layer import TuningLayer, tuning_layer
from phyai.tune.store import Store

AUTOTUNE = "autotune"


@attrs.frozen
class Tuned:
    """A policy, the layer that was put into it, and what is wrong with the store (None: nothing)."""

    policy: Policy
    layer: TuningLayer = attrs.field(factory=TuningLayer)
    problem: str | None = None


def with_tuning(policy: Policy, catalog: Catalog, environment: Environment, environ: Mapping[str, str]) -> Tuned:
    """``policy`` with the measurements of the environment's device, where its profile asks for them.

    Nothing is measured here. Measurements of another machine, driver, library or code do not count: ``layer.stale``
    says so of each.

    Raises:
        TuneError: the store is there and cannot be read.
    """
    if policy.profile != AUTOTUNE:
        return Tuned(policy)
    contents = Store.of(environment.device, environ).read()
    layer = tuning_layer(contents.measurements, catalog, policy, environment)
    return Tuned(layer.onto(policy), layer, contents.problem)
