"""What a model declares to the engine, and what the engine lends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from phyai.errors import DeclarationError, PhyAIError
from phyai.targets import load as load_target

if TYPE_CHECKING:
    from phyai.catalog import Catalog
    from phyai.dispatch import Dispatcher
    from phyai.engine.config import EngineConfig
    from phyai.environment import Environment
    from phyai.policy import Policy


@attrs.frozen
class Host:
    """What an engine lends to the model that it hosts: the device, the settings, and the dispatcher to bind to."""

    config: EngineConfig
    environment: Environment
    catalog: Catalog
    dispatcher: Dispatcher

    @property
    def device(self) -> str:
        """The device as torch names it: ``cpu``, ``cuda:0``."""
        device = self.environment.device
        return device.type if device.type == "cpu" else f"{device.type}:{device.index}"

    def current(self) -> AbstractContextManager[Any]:
        """Within it the engine's GPU is the current one: where kernels are loaded and launched, and streams and events
        made, that are not told a device. On a CPU: nothing."""
        device = self.environment.device
        if device.type != "cuda":
            return nullcontext()
        import torch

        return torch.cuda.device(device.index)


class Model(Protocol):
    """A loaded model. Calls come one at a time, from any thread."""

    def step(self, request: Any) -> Any:
        """Compute one answer."""

    def close(self) -> None:
        """Let go of device memory. Called once."""


class Study(Protocol):
    """A model's checkpoint, as those see it who quantize it and ask what that cost.

    ``paths`` maps the modules of the checkpoint that are linear layers of the model to their paths in it, by which
    quantization rules find them.
    """

    paths: Mapping[str, str]

    def answers(
        self, policy: Policy, *, inputs: str | Path | None = None, samples: int = 8, watch: Watch | None = None
    ) -> Any:
        """What the model answers under a policy: a tensor whose first dimension counts samples (pairs of an observation
        and a noise), the same ones at every call. ``inputs`` is a file of observations; None makes some up.
        ``watch`` is told of the inputs of every linear layer."""


#: Called with the path of a linear layer in the model, and its inputs ``[..., K]``.
Watch = Callable[[str, Any], None]


def _check_target(_: Any, attribute: Any, value: Any) -> None:
    if not all(part for part in value.partition(":")):
        raise DeclarationError(f"{attribute.name}={value!r}; give it as 'module:name'")


@attrs.frozen
class ModelPlugin:
    """A model that an engine can host, declared with strings that are imported when it is used.

    ``arguments`` (``"module:Class"``) is the record that :class:`EngineArgs.plugin_args` must be. ``load``
    (``"module:function"``) is called as ``load(arguments, host)`` and returns a :class:`Model`. ``command`` is a
    module for ``phyai run <name>`` with ``add_arguments(parser)`` and ``main(args, context) -> int``; None when the
    model has none. ``example`` (``"module:function"``) is called with the loaded model and returns a request of the
    usual size, to warm up and tune with. ``study`` (``"module:Class"``) is a :class:`Study`: called with a checkpoint
    folder and a catalog, it gives one, or None when the folder is of another model. ``roles`` are the values that
    the fact ``role`` takes at its call sites, so that a misspelt one in a policy is noticed.
    """

    name: str
    doc: str
    arguments: str = attrs.field(validator=_check_target)
    load: str = attrs.field(validator=_check_target)
    command: str | None = None
    example: str | None = None
    study: str | None = None
    roles: tuple[str, ...] = ()

    def arguments_class(self) -> type:
        """Import and return the class of the model's arguments."""
        return load_target(self.arguments)  # type: ignore[no-any-return]

    def loader(self) -> Callable[[Any, Host], Model]:
        """Import and return ``load``."""
        return load_target(self.load)  # type: ignore[no-any-return]

    def example_request(self, model: Model) -> Any:
        """A request of the usual size.

        Raises:
            PhyAIError: the model declares none.
        """
        if self.example is None:
            raise PhyAIError(f"the model {self.name} declares no example request; give engine.tune() one from Python")
        return load_target(self.example)(model)


def study_of(checkpoint_dir: str | Path, catalog: Catalog) -> Study | None:
    """What the model of a checkpoint offers for studying quantizations of it; None when no model claims it."""
    for plugin in catalog.models:
        study = load_target(plugin.study)(checkpoint_dir, catalog) if plugin.study is not None else None
        if study is not None:
            return study  # type: ignore[no-any-return]
    return None
