"""What discovery hands to the catalog: each plug-in's contributions, and how it fared."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from phyai.environment import Library
    from phyai.kernel import Kernel
    from phyai.op import Op
    from phyai.plugins.hooks import Command


class PluginState(enum.Enum):
    """How a plug-in fared. Only the first three leave its records in the catalog."""

    READY = "ready"
    MISSING_LIBRARY = "missing library"  # declared, but a requirement of it is not installed here
    CONFLICT = "conflict"  # some of its ids are claimed by another plug-in too; those are refused
    DISABLED = "disabled"
    UNKNOWN = "unknown"  # named in PHYAI_DISABLE_PLUGINS, but not installed
    HALF_REMOVED = "half removed"
    TWO_VERSIONS = "two versions"
    IMPORT_ERROR = "import error"
    WRONG_API = "wrong API version"
    HOOK_ERROR = "hook error"
    INVALID = "invalid declaration"

    @property
    def usable(self) -> bool:
        return self in (PluginState.READY, PluginState.MISSING_LIBRARY, PluginState.CONFLICT)


@attrs.frozen
class PluginStatus:
    """A row of ``phyai backends``: what was found, and if it is not ready, why and what to do.

    ``provides`` counts the records that reached the catalog, by kind.
    """

    name: str
    group: str = "phyai.backends"
    distribution: str | None = None
    version: str | None = None
    state: PluginState = PluginState.READY
    reason: str = ""
    advice: str = ""
    provides: Mapping[str, int] = attrs.field(factory=dict, hash=False)

    def __str__(self) -> str:
        origin = f" of {self.distribution} {self.version}" if self.distribution else ""
        return f"{self.name}{origin}"


@attrs.frozen
class Plugin:
    """What one plug-in contributes. Tests build these directly; discovery reads them from hooks.

    ``package`` is its top-level module, ``observe`` its ``phyai_decision_made``.
    """

    status: PluginStatus
    ops: tuple[Op, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    quant_formats: tuple[Any, ...] = ()
    importers: tuple[Any, ...] = ()
    models: tuple[Any, ...] = ()
    libraries: tuple[Library, ...] = ()
    commands: tuple[Command, ...] = ()
    observe: Callable[[Any], None] | None = None

    @property
    def usable(self) -> bool:
        return self.status.state.usable

    def counted(self) -> Plugin:
        """This plug-in with a row that says how much it provides."""
        kinds = ("ops", "kernels", "quant_formats", "importers", "models", "libraries", "commands")
        provides = {kind: len(getattr(self, kind)) for kind in kinds if getattr(self, kind)}
        return attrs.evolve(self, status=attrs.evolve(self.status, provides=provides))

    def refuse(self, state: PluginState, reason: str, advice: str = "") -> Plugin:
        """This plug-in with nothing but a row that says why."""
        return Plugin(attrs.evolve(self.status, state=state, reason=reason, advice=advice))

    def flag(self, state: PluginState, reason: str, advice: str = "") -> Plugin:
        """This plug-in as it is, with a row that says what is amiss."""
        return attrs.evolve(self, status=attrs.evolve(self.status, state=state, reason=reason, advice=advice))
