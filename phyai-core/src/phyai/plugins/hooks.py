"""The hooks that a plug-in may implement. Their names and arguments are what ``PLUGIN_API`` versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import pluggy

if TYPE_CHECKING:
    from collections.abc import Callable

    from phyai.decision import Decision
    from phyai.environment import Library
    from phyai.kernel import Kernel
    from phyai.op import Op

#: The version of the hooks below. A plug-in states the one it was written for.
PLUGIN_API = 1

#: Entry-point groups, in the order in which their plug-ins are listed.
GROUPS: tuple[str, ...] = ("phyai.backends", "phyai.models", "phyai.importers")

_F = TypeVar("_F", bound="Callable[..., Any]")
hookspec = pluggy.HookspecMarker("phyai")
#: Marks a function of a plug-in as the implementation of the hook of the same name.
hookimpl = pluggy.HookimplMarker("phyai")


@attrs.frozen
class Command:
    """A sub-command of ``phyai``.

    ``module`` is imported when the command is used, and has ``add_arguments(parser)`` and
    ``main(args, context) -> int`` (see :mod:`phyai.cli.command`).
    """

    name: str
    help: str
    module: str


class Hooks:
    """Hook specifications. Each of the first seven returns an iterable of records and imports nothing heavy."""

    @hookspec
    def phyai_ops(self) -> Iterable[Op]:  # type: ignore[empty-body]
        """Ops beyond the core's."""

    @hookspec
    def phyai_kernels(self) -> Iterable[Kernel]:  # type: ignore[empty-body]
        """Kernels, for the core's ops or for any plug-in's."""

    @hookspec
    def phyai_quant_formats(self) -> Iterable[Any]:  # type: ignore[empty-body]
        """Memory layouts of quantized weights: :class:`phyai.quant.formats.QuantFormat`."""

    @hookspec
    def phyai_importers(self) -> Iterable[Any]:  # type: ignore[empty-body]
        """Readers of quantization configurations that checkpoints carry."""

    @hookspec
    def phyai_models(self) -> Iterable[Any]:  # type: ignore[empty-body]
        """Models that :class:`phyai.engine.Engine` can host."""

    @hookspec
    def phyai_libraries(self) -> Iterable[Library]:  # type: ignore[empty-body]
        """Libraries whose versions become ``lib.*`` facts."""

    @hookspec
    def phyai_commands(self) -> Iterable[Command]:  # type: ignore[empty-body]
        """Sub-commands of ``phyai``."""

    @hookspec
    def phyai_decision_made(self, decision: Decision) -> None:
        """Called after every new decision (not for remembered ones). Must not change anything."""


#: Hooks that return records, by the attribute of :class:`phyai.plugins.Plugin` that holds them.
RECORD_HOOKS: dict[str, str] = {
    "ops": "phyai_ops",
    "kernels": "phyai_kernels",
    "quant_formats": "phyai_quant_formats",
    "importers": "phyai_importers",
    "models": "phyai_models",
    "libraries": "phyai_libraries",
    "commands": "phyai_commands",
}
