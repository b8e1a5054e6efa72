"""Finding and loading plug-ins: metadata is read once, each entry point is loaded by itself."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import pluggy

from phyai.errors import PhyAIError
from phyai.plugins.hooks import GROUPS, PLUGIN_API, RECORD_HOOKS, Hooks
from phyai.plugins.metadata import Offer, installed_offers, unmet_requirements
from phyai.plugins.records import Plugin, PluginState, PluginStatus

if TYPE_CHECKING:
    from phyai.catalog import Catalog

_log = logging.getLogger("phyai.plugins")

#: Comma-separated names of plug-ins, or of distributions, to leave out.
DISABLE_VARIABLE = "PHYAI_DISABLE_PLUGINS"


def discover(env: Mapping[str, str] | None = None) -> Catalog:
    """The catalog of every installed plug-in.

    ``env`` is the process environment unless given. Nothing a plug-in does raises here: its row in
    ``catalog.plugins`` says what is wrong.

    Raises:
        PhyAIError: ``PHYAI_DISABLE_PLUGINS`` is malformed.
    """
    from phyai.catalog import Catalog  # the catalog reads records of this package

    disabled = parse_disabled((os.environ if env is None else env).get(DISABLE_VARIABLE, ""))
    found = installed_offers()
    plugins = [_load(offer, disabled) for offer in sorted(found, key=lambda o: (GROUPS.index(o.group), o.name))]
    known = {offer.name for offer in found} | {offer.distribution for offer in found}
    plugins += [_unknown(name, known) for name in sorted(disabled - known)]
    catalog = Catalog.build(plugins, tolerant=True)
    for status in catalog.plugins:
        if status.state not in (PluginState.READY, PluginState.DISABLED, PluginState.MISSING_LIBRARY):
            _log.warning("plug-in %s: %s: %s", status, status.state.value, status.reason)
    return catalog


def parse_disabled(value: str) -> frozenset[str]:
    """The names in ``PHYAI_DISABLE_PLUGINS``.

    >>> sorted(parse_disabled("humming, phyai-backend-cuda"))
    ['humming', 'phyai-backend-cuda']

    Raises:
        PhyAIError: an item is empty or is no name.
    """
    if not value.strip():
        return frozenset()
    names = [item.strip() for item in value.split(",")]
    wrong = next((name for name in names if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)), None)
    if wrong is not None:
        raise PhyAIError(f"{DISABLE_VARIABLE}={value!r}: {wrong!r} is not a name; write names separated by commas: a,b")
    return frozenset(names)


def _unknown(name: str, known: Iterable[str]) -> Plugin:
    return Plugin(
        PluginStatus(
            name,
            state=PluginState.UNKNOWN,
            reason=f"{DISABLE_VARIABLE} names it, but no plug-in and no distribution of one has that name",
            advice=f"installed: {', '.join(sorted(known)) or 'none'}",
        )
    )


def _load(offer: Offer, disabled: frozenset[str]) -> Plugin:
    plugin = Plugin(PluginStatus(offer.name, offer.group, offer.distribution, offer.version))
    if disabled & {offer.name, offer.distribution}:
        return plugin.refuse(PluginState.DISABLED, f"turned off by {DISABLE_VARIABLE}")
    if offer.damage:
        return plugin.refuse(PluginState.HALF_REMOVED, offer.damage, _reinstall(offer))
    if len(offer.installed) > 1:
        places = ", ".join(f"{version} in {place}" for version, place in offer.installed)
        return plugin.refuse(
            PluginState.TWO_VERSIONS,
            f"{offer.distribution} is installed more than once: {places}",
            f"pip uninstall {offer.distribution} until none is left, then install one",
        )
    try:
        module = offer.load()
    except ModuleNotFoundError as error:
        return _missing_module(plugin, offer, error)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return plugin.refuse(
            PluginState.IMPORT_ERROR, _last_line(error), f"report it to the authors of {offer.distribution}"
        )
    stated = getattr(module, "PLUGIN_API", None)
    if stated != PLUGIN_API or isinstance(stated, bool):
        says = "does not state PLUGIN_API" if stated is None else f"is written for PLUGIN_API {stated!r}"
        newer = isinstance(stated, int) and int(stated) > PLUGIN_API
        return plugin.refuse(
            PluginState.WRONG_API,
            f"{offer.value} {says}; this phyai has {PLUGIN_API}",
            f"upgrade {'phyai-core' if newer else offer.distribution}",
        )
    return _collect(plugin, offer, module)


def _missing_module(plugin: Plugin, offer: Offer, error: ModuleNotFoundError) -> Plugin:
    own = offer.value.partition(":")[0]
    if error.name is not None and (own == error.name or own.startswith(error.name + ".")):
        return plugin.refuse(
            PluginState.HALF_REMOVED,
            f"its metadata is installed, but its module {own} is gone",
            _reinstall(offer),
        )
    unmet = unmet_requirements(offer)
    what = " ".join(f'"{requirement}"' for requirement, _ in unmet) or error.name or "the library that it imports"
    return plugin.refuse(PluginState.IMPORT_ERROR, _last_line(error), f"pip install {what}")


def _collect(plugin: Plugin, offer: Offer, module: ModuleType) -> Plugin:
    manager = pluggy.PluginManager("phyai")
    manager.add_hookspecs(Hooks)
    records: dict[str, Any] = {}  # by attribute of Plugin
    hook = "its hooks"
    try:
        manager.register(module, offer.name)
        manager.check_pending()
        for kind, hook in RECORD_HOOKS.items():
            records[kind] = tuple(r for given in getattr(manager.hook, hook)() for r in given)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return plugin.refuse(
            PluginState.HOOK_ERROR, f"{hook}: {_last_line(error)}", f"report it to the authors of {offer.distribution}"
        )
    observers = manager.hook.phyai_decision_made
    observe = (lambda decision: observers(decision=decision)) if observers.get_hookimpls() else None
    plugin = attrs.evolve(plugin, observe=observe, **records)
    unmet = unmet_requirements(offer)
    absent = [library for library in plugin.libraries if library.installed() is None]
    if unmet or absent:
        reasons = [f"{requirement} is required; {found}" for requirement, found in unmet]
        reasons += [f"{library.distributions[0]} is not installed" for library in absent]
        wanted = [str(requirement) for requirement, _ in unmet] + [library.distributions[0] for library in absent]
        install = " ".join(f'"{name}"' for name in dict.fromkeys(wanted))
        return plugin.flag(PluginState.MISSING_LIBRARY, "; ".join(reasons), f"pip install {install}")
    return plugin


def _reinstall(offer: Offer) -> str:
    return f"install {offer.distribution} again, or remove {offer.place}"


def _last_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[-1]}" if text else type(error).__name__
