"""PhyAI: run physical-AI models with the kernel you choose for every part, and know why.

The names below are loaded on first use, so that ``import phyai`` stays light and never imports torch.

>>> import phyai
>>> phyai.match({"device.arch": ">=sm90"}).holds({"device.arch": "sm100"})
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.catalog import Catalog
    from phyai.decision import Decision
    from phyai.dispatch import Dispatcher, Site
    from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
    from phyai.environment import Environment
    from phyai.errors import PhyAIError
    from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
    from phyai.plugins import discover, hookimpl
    from phyai.policy import Policy, load_policy
    from phyai.predicates import match
    from phyai.resolver import resolve

__version__ = "0.1.0"

_HOMES = {
    "Catalog": "catalog",
    "Decision": "decision",
    "Dispatcher": "dispatch",
    "Site": "dispatch",
    "DeviceConfig": "engine",
    "Engine": "engine",
    "EngineArgs": "engine",
    "EngineConfig": "engine",
    "RuntimeConfig": "engine",
    "Environment": "environment",
    "PhyAIError": "errors",
    "Band": "kernel",
    "Capture": "kernel",
    "Kernel": "kernel",
    "Numerics": "kernel",
    "Prepared": "kernel",
    "discover": "plugins",
    "hookimpl": "plugins",
    "Policy": "policy",
    "load_policy": "policy",
    "match": "predicates",
    "resolve": "resolver",
}

__all__ = [
    "Band",
    "Capture",
    "Catalog",
    "Decision",
    "DeviceConfig",
    "Dispatcher",
    "Engine",
    "EngineArgs",
    "EngineConfig",
    "Environment",
    "Kernel",
    "Numerics",
    "PhyAIError",
    "Policy",
    "Prepared",
    "RuntimeConfig",
    "Site",
    "discover",
    "hookimpl",
    "load_policy",
    "match",
    "resolve",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'phyai' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"phyai.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
