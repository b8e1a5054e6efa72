"""Checks of what plug-ins declare, before any of it reaches a catalog.

First each plug-in by itself (a problem refuses all of it), then between them (an id that two claim is
refused to both, and both rows say so). Repeated until nothing changes, because a refused plug-in takes the
ops it declared with it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

import attrs

from phyai.catalog import merge_vocabularies, op_vocabulary
from phyai.composite import BACKEND as DECOMPOSED
from phyai.environment import CORE_LIBRARIES, Library
from phyai.errors import DeclarationError
from phyai.facts import Vocabulary
from phyai.kernel import Kernel
from phyai.op import Op
from phyai.plugins.hooks import Command
from phyai.plugins.op_checks import op_problems, target_problems
from phyai.plugins.records import Plugin, PluginState
from phyai.predicates import Predicate, PredicateErrors, match

#: The kinds of record that are known by a name (and the attribute that holds it).
_IDS = {"ops": "name", "kernels": "id", "models": "name", "commands": "name", "quant_formats": "name"}
#: What no two plug-ins may claim: those names, and the layouts, of which one plug-in may have several formats.
_CLAIMS = (*_IDS.items(), ("quant_formats", "layout"))


def check(plugins: Sequence[Plugin], core: Sequence[Op]) -> tuple[tuple[Plugin, ...], dict[str, str]]:
    """``plugins`` with what may not be registered taken out, and each refused id with the reason."""
    refused: dict[str, str] = {}
    current = list(plugins)
    while True:
        checked = _each_against_others(_each_alone(current, core), refused)
        if all(after is before for after, before in zip(checked, current, strict=True)):
            return tuple(checked), refused
        current = checked


@attrs.frozen
class _Known:
    """What every plug-in's declarations may refer to."""

    core: Sequence[Op]
    ops: dict[str, Op]
    vocabularies: dict[str, Vocabulary]
    libraries: set[str] = attrs.field(factory=lambda: {library.name for library in CORE_LIBRARIES})
    _modules: dict[str, bool] = attrs.field(factory=dict)

    def has_module(self, name: str) -> bool:
        if name not in self._modules:
            self._modules[name] = module_exists(name)
        return self._modules[name]


def _each_alone(plugins: list[Plugin], core: Sequence[Op]) -> list[Plugin]:
    known = _Known(core, {op.name: op for op in core}, {op.name: op_vocabulary(op) for op in core})
    for plugin in plugins:
        for op in plugin.ops:
            with contextlib.suppress(Exception):  # an op that is no op is found below, and refuses its plug-in
                known.vocabularies.setdefault(op.name, op_vocabulary(op))
                known.ops.setdefault(op.name, op)
        known.libraries.update(library.name for library in plugin.libraries if isinstance(library, Library))
    checked = []
    for plugin in plugins:
        problem = _first_problem(plugin, known) if plugin.usable else None
        if problem is not None:
            plugin = plugin.refuse(PluginState.INVALID, problem, f"report it to the authors of {_origin(plugin)}")
        checked.append(plugin)
    return checked


def _first_problem(plugin: Plugin, known: _Known) -> str | None:
    try:
        return next(_problems(plugin, known), None)
    except Exception as error:  # records so odd that they cannot be read
        return f"its declarations cannot be read: {type(error).__name__}: {error}"


def _problems(plugin: Plugin, known: _Known) -> Iterator[str]:
    yield from _wrong_types(plugin)
    yield from _repeated(plugin)
    yield from _op_problems(plugin, known)
    yield from _command_problems(plugin, known)
    for kernel in plugin.kernels:
        for problem in _kernel_problems(kernel, known):
            yield f"kernel {kernel.id}: {problem}"


def _wrong_types(plugin: Plugin) -> Iterator[str]:
    wanted: dict[str, type] = {"ops": Op, "kernels": Kernel, "libraries": Library, "commands": Command}
    for kind, record_type in wanted.items():
        for record in getattr(plugin, kind):
            if not isinstance(record, record_type):
                yield f"phyai_{kind}() gave {record!r:.80}; it must give records of {record_type.__name__}"
    for kind in ("models", "importers", "quant_formats"):
        for record in getattr(plugin, kind):
            if not isinstance(getattr(record, "name", None), str):
                yield f"phyai_{kind}() gave {record!r:.80}, which has no name"


def _repeated(plugin: Plugin) -> Iterator[str]:
    for kind, key in _IDS.items():
        seen: set[str] = set()
        for record in getattr(plugin, kind):
            identity = getattr(record, key)
            if identity in seen:
                yield f"{identity!r} is declared twice by {_origin(plugin)}"
            seen.add(identity)


def _op_problems(plugin: Plugin, known: _Known) -> Iterator[str]:
    taken = {spelling: op.name for op in known.core for spelling in (op.name, *op.aliases)}
    for op in plugin.ops:
        for spelling in (op.name, *op.aliases):
            if spelling in taken:
                yield f"op {op.name}: the name {spelling!r} belongs to the op {taken[spelling]} of phyai-core"
        yield from (f"op {op.name}: {problem}" for problem in op_problems(op, known.ops, known.has_module))
        try:
            merge_vocabularies([*known.core, op])
        except DeclarationError as error:
            yield str(error)


def _command_problems(plugin: Plugin, known: _Known) -> Iterator[str]:
    from phyai.cli.registry import BUILT_IN

    for command in plugin.commands:
        if command.name in {built_in.name for built_in in BUILT_IN}:
            yield f"the command {command.name!r} is phyai-core's own"
        if not known.has_module(command.module):
            yield f"command {command.name}: there is no module {command.module}"


def _kernel_problems(kernel: Kernel, known: _Known) -> Iterator[str]:
    if kernel.op not in known.ops:
        alias = next((op.name for op in known.ops.values() if kernel.op in op.aliases), None)
        yield f"unknown op {kernel.op!r}" + (f"; it is an alias, the op's name is {alias}" if alias else "")
        return
    head = f"{kernel.backend}.{kernel.op}"
    if kernel.id != head and not kernel.id.startswith(head + "."):
        yield f"the id must read <backend>.{kernel.op}[.<variant>]"
    if kernel.backend == DECOMPOSED:
        yield f"the backend name {kernel.backend!r} is the core's own"
    vocabulary = known.vocabularies[kernel.op]
    yield from _condition_problems("when", kernel.when, vocabulary, known.libraries)
    for band, where in kernel.bands:
        name = band.name.lower()
        if band <= kernel.band:
            yield f"bands gives {name}, which is not above its band {kernel.band.name.lower()}"
        yield from _condition_problems(f"bands.{name}", where, vocabulary, known.libraries)
    for fact in kernel.specializes_on:
        spec = vocabulary.find(fact)
        if spec is None:
            near = vocabulary.suggest(fact)
            yield f"specializes_on names the unknown fact {fact!r}" + (f"; did you mean {near!r}?" if near else "")
        elif not spec.dynamic:
            yield f"specializes_on names {fact!r}, which is static: prepare may read it anyway"
    if not kernel.layouts:
        yield "layouts is empty; a kernel of ordinary tensors says ('plain',)"
    yield from _param_problems(kernel)
    for what, target in (("prepare", kernel.prepare), ("compile", kernel.compile)):
        if isinstance(target, str):
            yield from target_problems(f"{what} {target!r}", target, known.has_module)


def _condition_problems(field: str, condition: Predicate, vocabulary: Vocabulary, libraries: set[str]) -> Iterator[str]:
    try:  # a kernel's conditions read what a policy may read: the same reader checks their names and values
        match(condition.to_yaml(), vocabulary)
    except PredicateErrors as errors:
        yield from (f"{field}: {problem}" for problem in errors.problems)
    for fact in sorted(condition.facts):
        if fact.startswith("lib.") and fact.removeprefix("lib.") not in libraries:
            yield f"{field} reads {fact}, and no plug-in declares that library with phyai_libraries()"


def _param_problems(kernel: Kernel) -> Iterator[str]:
    names = [param.name for param in kernel.params]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"param {name!r} is declared twice"
    for param in kernel.params:
        if not param.name.isidentifier():
            yield f"param {param.name!r} is not an identifier"
        if param.values is not None and param.default is not None and param.default not in param.values:
            yield f"param {param.name}: its default {param.default!r} is none of its values {list(param.values)}"


def module_exists(name: str) -> bool:
    """Whether ``name`` could be imported, found without importing anything."""
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return False
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    return spec is not None


def _each_against_others(plugins: list[Plugin], refused: dict[str, str]) -> list[Plugin]:
    claims: dict[_Claim, list[Plugin]] = defaultdict(list)
    for plugin in plugins:
        for claim in dict.fromkeys(claim for kind, key in _CLAIMS for claim in _claimed(plugin, kind, key)):
            claims[claim].append(plugin)
    clashes = {claim: owners for claim, owners in claims.items() if len(owners) > 1}
    for (kind, key, identity), owners in clashes.items():
        what = "layout" if key == "layout" else kind.removesuffix("s").replace("_", " ")
        refused[identity] = (
            f"{what} {identity} is claimed by {' and by '.join(_origin(p) for p in owners)}, so neither is used"
        )
    return [_without(plugin, clashes, refused) for plugin in plugins]


#: A kind of record, the attribute in question, and its value.
_Claim = tuple[str, str, str]


def _claimed(plugin: Plugin, kind: str, key: str) -> Iterator[_Claim]:
    for record in getattr(plugin, kind):
        if isinstance(identity := getattr(record, key, None), str):
            yield kind, key, identity


def _without(plugin: Plugin, clashes: dict[_Claim, list[Plugin]], refused: dict[str, str]) -> Plugin:
    mine = [claim for claim, owners in clashes.items() if any(owner is plugin for owner in owners)]
    if not mine:
        return plugin
    others = sorted(_switch(owner, plugin) for claim in mine for owner in clashes[claim] if owner is not plugin)
    kept: dict[str, Any] = {kind: getattr(plugin, kind) for kind in _IDS}
    for kind, key in _CLAIMS:
        kept[kind] = tuple(r for r in kept[kind] if (kind, key, getattr(r, key, None)) not in clashes)
    reasons = "; ".join(refused[identity] for _, _, identity in mine)
    advice = f"remove one of the distributions, or set PHYAI_DISABLE_PLUGINS={others[0]}"
    return attrs.evolve(plugin, **kept).flag(PluginState.CONFLICT, reasons, advice)


def _switch(other: Plugin, plugin: Plugin) -> str:
    """What turns ``other`` off and leaves ``plugin`` on."""
    same_name = other.status.name == plugin.status.name
    return other.status.distribution or "" if same_name else other.status.name


def _origin(plugin: Plugin) -> str:
    return plugin.status.distribution or f"the plug-in {plugin.status.name}"
