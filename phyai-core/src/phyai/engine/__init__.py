"""The engine: hosts a model plug-in on one device under one policy, and knows no model.

::

    with Engine(EngineArgs(plugin="pi05", plugin_args=PI05Args(checkpoint_dir="…"))) as engine:
        chunk = engine.step(observation)          # or engine.submit(observation).result()

Importing this imports no tensor library; making an :class:`Engine` imports what its model needs.
"""

from phyai.engine.config import DeviceConfig, EngineArgs, EngineConfig, RuntimeConfig
from phyai.engine.engine import Engine, EngineError
from phyai.engine.plugin import Host, Model, ModelPlugin

__all__ = [
    "DeviceConfig",
    "Engine",
    "EngineArgs",
    "EngineConfig",
    "EngineError",
    "Host",
    "Model",
    "ModelPlugin",
    "RuntimeConfig",
]
