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


EXECUTIONS = ("auto", "eager", "static", "graph")


def _one_of_executions(_: Any, attribute: Any, value: Any) -> None:
    if value not in EXECUTIONS:
        raise CallError(f"{attribute.name}={value!r}; allowed are {', '.join(EXECUTIONS)}")


def _at_least_one(_: Any, attribute: Any, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise CallError(f"{attribute.name}={value!r}; give a whole number of at least 1")


def _buckets(_: Any, attribute: Any, value: tuple[int, ...]) -> None:
    if any(type(size) is not int or size < 1 for size in value) or list(value) != sorted(set(value)):
        raise CallError(
            f"{attribute.name}={value!r}; give whole numbers of at least 1, each larger than the one before"
        )


@attrs.frozen
class RuntimeConfig:
    """How requests are run.

    ``execution``: ``eager`` lays every request out at its own lengths and launches kernel after kernel; ``static``
    pads it to a bucket in buffers that stay where they are; ``graph`` replays one CUDA graph over those buffers.
    ``auto`` is ``graph`` on a GPU and ``eager`` on a CPU.

    ``prompt_buckets``: prompts are padded up to the next of these numbers of tokens, which never changes an answer;
    a model adds its longest prompt. Without any, every prompt length has a graph of its own, in which kernels that
    fix lengths when they plan may run. ``max_batch`` is the largest batch, for which keys and values have
    memory. ``max_graphs`` are kept, the least recently used one goes first. ``new_graphs``: whether a request that no
    captured graph fits may have one captured; where it may not, it is refused.

    >>> RuntimeConfig(prompt_buckets=[16, 48]).prompt_buckets
    (16, 48)
    """

    execution: str = attrs.field(default="auto", validator=_one_of_executions)
    prompt_buckets: tuple[int, ...] = attrs.field(default=(16, 48, 112, 200), converter=tuple, validator=_buckets)
    max_batch: int = attrs.field(default=8, validator=_at_least_one)
    max_graphs: int = attrs.field(default=16, validator=_at_least_one)
    new_graphs: bool = True


@attrs.frozen
class EngineConfig:
    """Settings that do not depend on the model. ``tags`` become the fact ``model.tags`` of every call."""

    device: DeviceConfig = attrs.field(factory=DeviceConfig)
    runtime: RuntimeConfig = attrs.field(factory=RuntimeConfig, kw_only=True)
    tags: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)


@attrs.frozen
class EngineArgs:
    """``plugin`` names the model; ``plugin_args`` is that plug-in's own record of arguments."""

    plugin: str
    plugin_args: Any
    config: EngineConfig = attrs.field(factory=EngineConfig)
