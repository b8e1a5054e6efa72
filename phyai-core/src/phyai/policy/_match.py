"""A rule's ``match:`` as a predicate: ops by their names, facts that the op's calls carry."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.facts import Vocabulary
from phyai.policy import _earlier
from phyai.policy._model import Location, is_glob, kernel_matches
from phyai.policy._node import Node
from phyai.policy._problems import Report, one_of
from phyai.predicates import FALSE, TRUE, Predicate, PredicateErrors, match
from phyai.spelling import did_you_mean

_LISTS = ("any_of", "all_of", "none_of")
Path = tuple[str | int, ...]
Ops = frozenset[str] | None  # None: any op


@attrs.frozen
class Match:
    """A predicate, the ops whose calls it can match, and whether a warning says that it may match none."""

    predicate: Predicate
    ops: Ops
    doubtful: bool = False


class Matches:
    """Reads the ``match:`` of rules against a catalog; problems go to the report."""

    def __init__(self, catalog: Catalog, report: Report, file: str) -> None:
        self.catalog = catalog
        self.report = report
        self.file = file
        self.op_names = {**catalog.aliases, **{op: op for op in _earlier.ABSENT_OPS if op not in catalog.aliases}}
        self.has = lru_cache(maxsize=None)(self._has)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Every fact of any op here, and those that only the earlier system's ops have."""
        known = self.catalog.vocabulary
        return Vocabulary((*known.specs, *(s for name, s in _earlier.ABSENT_FACTS.items() if known.find(name) is None)))

    @cached_property
    def libraries(self) -> frozenset[str]:
        """The facts ``lib.*`` that a call can carry."""
        return frozenset(f"lib.{library.name}" for library in self.catalog.libraries)

    @cached_property
    def roles(self) -> frozenset[str]:
        """The roles that the installed models give their call sites."""
        return frozenset(role for model in self.catalog.models for role in getattr(model, "roles", ()))

    def read(self, node: Node) -> Match | None:
        """The predicate, or None when something is wrong with it."""
        if node.value is None:
            return Match(TRUE, None)
        errors, warnings = len(self.report.errors), len(self.report.warnings)
        reading = _Reading(self)
        data = reading.item(node, (), None)
        try:
            predicate = match(data, self.vocabulary, ops=self.op_names)
        except PredicateErrors as refusal:
            for problem in refusal.problems:
                at, got = reading.place(problem.path, at_key=problem.at_key)
                message, _, forms = problem.message.partition("; ")  # what may be written instead
                self.report.error(at, message, got, problem.suggestion or forms or None)
        if len(self.report.errors) > errors:
            return None
        ops = self.ops(node, None)
        at = Location(self.file, node.line, node.column)
        if predicate == FALSE:
            self.report.warn(at, "no call can match this", node.shown())
        elif ops and ops <= _earlier.ABSENT_OPS - self.catalog.aliases.keys():
            self.report.warn(at, "an op of the earlier system, so no call here matches this", ", ".join(sorted(ops)))
        return Match(predicate, ops, len(self.report.warnings) > warnings)

    def ops(self, node: Node, scope: Ops) -> Ops:
        """The ops that a mapping can match, within ``scope``, as far as its own ``op`` says."""
        written = node.value.get("op")
        if written is None or written.is_map:
            return scope
        patterns = [str(i.value) for i in (written.value if written.is_list else (written,))]
        if "*" in patterns:
            return scope
        found = {name for pattern in patterns for name in self._named(pattern)}
        if found == {"activation"} and _gated(node):
            found = {"gated_activation"}  # one op in the earlier system
        return frozenset(found) if scope is None else frozenset(found) & scope

    def _named(self, pattern: str) -> tuple[str, ...]:
        if is_glob(pattern):
            return tuple(op.name for op in self.catalog.ops if kernel_matches(pattern, op.name))
        return (self.op_names[pattern],) if pattern in self.op_names else ()

    def _has(self, fact: str, scope: Ops) -> bool:
        """Whether calls of an op in ``scope`` can carry a fact."""
        known = [op for op in scope or () if op in self.catalog.aliases]
        if not known:
            return (self.vocabulary if scope else self.catalog.vocabulary).find(fact) is not None
        return any(self.catalog.vocabulary_of(op).find(fact) is not None for op in known)


def _gated(node: Node) -> bool:
    attributes = node.value.get("attrs")
    nested = attributes.value.get("gated") if attributes is not None and attributes.is_map else None
    gated = node.value.get("attrs.gated", nested)
    return gated is not None and gated.value is True


class _Reading:
    """One ``match:`` on its way to plain data with dotted facts, remembering where each value was written."""

    def __init__(self, matches: Matches) -> None:
        self._matches = matches
        self._report = matches.report
        self._places: dict[Path, tuple[tuple[int, int], Node]] = {}

    def place(self, path: Path, *, at_key: bool) -> tuple[Location, str]:
        """Where the value (or key) at a path of the plain data was written, and how."""
        end = next(end for end in range(len(path), -1, -1) if path[:end] in self._places)
        key, node = self._places[path[:end]]
        if at_key and end == len(path):
            return Location(self._matches.file, *key), str(path[-1]) if path else node.shown()
        found = node.find(path[end:])
        return Location(self._matches.file, found.line, found.column), found.shown()

    def item(self, node: Node, path: Path, scope: Ops) -> Any:
        self._places[path] = ((node.line, node.column), node)
        if not node.is_map:
            return node.plain()  # match() says what is wrong with it
        scope = self._matches.ops(node, scope)
        data: dict[str, Any] = {}
        self._gather(node, "", path, scope, data)
        return data

    def _gather(self, node: Node, prefix: str, path: Path, scope: Ops, data: dict[str, Any]) -> None:
        for key, child in node.value.items():
            name, here = prefix + key, (*path, prefix + key)
            if key in (*_LISTS, "when") and prefix:
                at = Location(self._matches.file, *node.keys[key])
                self._report.error(at, f"`{key}` cannot stand below `{prefix[:-1]}`", name, "move it up")
            elif name in _LISTS and child.is_list:
                self._places[here] = (node.keys[key], child)
                data[name] = [self.item(each, (*here, i), scope) for i, each in enumerate(child.value)]
            elif name == "when" and child.is_map:
                self._places[here] = (node.keys[key], child)
                data[name] = {part: self.item(each, (*here, part), scope) for part, each in child.value.items()}
            elif name == "when" and child.is_list:
                self._places[here] = (node.keys[key], child)
                data[name] = [self._when(each, (*here, i), scope) for i, each in enumerate(child.value)]
            elif child.is_map and not child.value and name not in _LISTS:
                at = Location(self._matches.file, *node.keys[key])
                self._report.error(at, "nothing is asked of this fact", name, f'for one that is there: {name}: "*"')
            elif child.is_map and name not in _LISTS:
                self._gather(child, name + ".", path, scope, data)
            else:
                self._condition(name, node.keys[key], child, path, scope, data)

    def _when(self, node: Node, path: Path, scope: Ops) -> Any:
        self._places[path] = ((node.line, node.column), node)
        if not node.is_map:
            return node.plain()
        return {part: self.item(each, (*path, part), scope) for part, each in node.value.items()}

    def _condition(
        self, name: str, key: tuple[int, int], node: Node, path: Path, scope: Ops, data: dict[str, Any]
    ) -> None:
        value = node.plain()
        if name == "op":
            conditions = {name: "gated_activation" if scope == frozenset({"gated_activation"}) else value}
        elif name in (*_LISTS, "when"):
            conditions = {name: value}  # match() says what is wrong with it
        else:
            conditions = _earlier.translate(name, value, lambda fact: self._matches.has(fact, scope))
        for fact, wanted in conditions.items():
            self._places[(*path, fact)] = (key, node)
            if fact in data:
                at = Location(self._matches.file, *key)
                self._report.error(at, f"a second condition on `{fact}`", name, "use a list, a range or all_of")
            elif fact in (*_LISTS, "when") or self._known(fact, name, key, wanted, scope):
                data[fact] = wanted
        if name == "role":
            self._roles(node)

    def _roles(self, node: Node) -> None:
        """Warn of roles that no installed model has; where no model is installed, any role may be right."""
        known = self._matches.roles
        for item in node.value if node.is_list else (node,):
            if isinstance(item.value, str) and known and not any(fnmatchcase(role, item.value) for role in known):
                at, hint = Location(self._matches.file, item.line, item.column), one_of(item.value, sorted(known))
                self._report.warn(at, "no installed model has such a role", item.text, hint)

    def _known(self, fact: str, written: str, key: tuple[int, int], value: Any, scope: Ops) -> bool:
        at = Location(self._matches.file, *key)
        if self._matches.has(fact, scope):
            if fact.startswith("lib.") and fact not in self._matches.libraries:
                hint = did_you_mean(fact, self._matches.libraries)
                self._report.warn(at, "no installed backend declares this library, so no call has it", written, hint)
            return True
        if self._matches.vocabulary.find(fact) is not None:
            of = f" of {', '.join(sorted(scope))}" if scope else ""
            outcome = "so asking for its absence says nothing" if value is None else "so the condition never holds"
            self._report.warn(at, f"no call{of} carries this fact, {outcome}", written)
            return True
        catalog = self._matches.catalog
        hint = None
        if scope and len(scope) == 1 and (op := next(iter(scope))) in catalog.aliases:
            hint = did_you_mean(written, catalog.vocabulary_of(op).names())
        hint = hint or did_you_mean(written, (*catalog.vocabulary.names(), *_LISTS, "when"))
        hint = hint or "`phyai ops` lists the facts of every op"
        self._report.error(at, "unknown fact", written, hint)
        return False
