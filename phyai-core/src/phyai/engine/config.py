"""What an engine is made from. Plain data: no tensor library is imported."""

from __future__ import annotations

from typing import Any

import attrs

from phyai.errors import CallError
from phyai.facts import canonical_dtype

FLOATS = ("fp64", "fp32", "bf16", "fp16")


def _params_dtype(value: Any) -> str | None:
    if value is None:
        return None
    name = canonical_dtype(str(value))
    if name not in FLOATS:
        raise CallError(
            f"params_dtype={value!r}; allowed are {', '.join(FLOATS)}, the torch dtypes of that name, and None"
        )
    return name


@attrs.frozen
class DeviceConfig:
    """Where an engine runs and the precision of its parameters.

    ``target`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:<index>``. ``params_dtype`` is a torch dtype or its name; None
    keeps the mix of precisions that the checkpoint was trained for.

    >>> DeviceConfig(params_dtype="bfloat16").params_dtype
    'bf16'
    """

    target: str = "cpu"
    params_dtype: str | None = attrs.field(default=None, converter=_params_dtype)


@attrs.frozen
class EngineConfig:
    """Settings that do not depend on the model. ``tags`` become the fact ``model.tags`` of every call."""

    device: DeviceConfig = attrs.field(factory=DeviceConfig)
    tags: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)


@attrs.frozen
class EngineArgs:
    """``plugin`` names the model; ``plugin_args`` is that plug-in's own record of arguments."""

    plugin: str
    plugin_args: Any
    config: EngineConfig = attrs.field(factory=EngineConfig)
