"""Putting an engine together: catalog, device, policy, dispatcher."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher
from phyai.engine.config import EngineArgs
from phyai.engine.plugin import Host
from phyai.environment import Environment
from phyai.plugins import discover
from phyai.policy import Policy, policy_from_environment

_log = logging.getLogger("phyai.engine")


def make_host(args: EngineArgs, policy: Policy | str | Path | None, catalog: Catalog | None) -> Host:
    """What the engine lends its model; see :class:`phyai.engine.Engine` for the arguments."""
    catalog = catalog or discover()
    environment = Environment.detect(args.config.device.target, libraries=catalog.libraries)
    if not isinstance(policy, Policy):
        loaded = policy_from_environment(os.environ, policy, catalog=catalog)
        for warning in loaded.warnings:
            _log.warning("%s", warning)
        policy = loaded.policy
    if policy.profile == "autotune":
        policy = _tuned(policy, catalog, environment)
    facts = {"model.tags": args.config.tags} if args.config.tags else {}
    return Host(args.config, environment, catalog, Dispatcher(catalog, policy, environment, facts=facts))


def _tuned(policy: Policy, catalog: Catalog, environment: Environment) -> Policy:
    """The policy with what was measured on the device; what does not count is logged."""
    from phyai.tune import with_tuning

    tuned = with_tuning(policy, catalog, environment, os.environ)
    for problem in filter(None, (tuned.problem, *(f"{key}: {why}" for key, why in tuned.layer.stale.items()))):
        _log.warning("tuning: %s", problem)
    return tuned.policy
