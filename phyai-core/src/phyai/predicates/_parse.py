"""``match:`` mappings, read into predicates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from phyai.facts import FactSpec, Vocabulary
from phyai.predicates._algebra import Predicate, all_of, any_of, none_of
from phyai.predicates._errors import PredicateError, PredicateErrors
from phyai.predicates._literals import Present
from phyai.predicates._values import declared, kind_by_value, parse_value
from phyai.spelling import did_you_mean

_COMBINATORS = ("any_of", "all_of", "none_of", "when")
_WHEN = "write when: {if: {…}, then: {…}}"
_MAX_DEPTH = 24
_MAX_SIZE = 10_000

Path = tuple[str | int, ...]


def match(
    mapping: Mapping[str, Any], vocabulary: Vocabulary | None = None, *, ops: Mapping[str, str] | None = None
) -> Predicate:
    """The predicate that a policy's ``match:`` states.

    Every entry must hold. A key is a fact's dotted name, or a prefix of it with the rest in a nested map,
    or one of ``any_of``, ``all_of``, ``none_of`` (lists of such mappings) and ``when`` (``{if, then}``, or
    a list of those). A scalar asks for equality (of a set: for that element), a list for any of its
    elements, ``null`` for absence, ``"*"`` for presence. Text says more: ``"<=64"``, ``"64..512"``
    (inclusive), ``"%16"``, ``">=sm90"``, ``">=0.7,<0.9"`` (all of them), globs on names.

    Args:
        mapping: plain data, as YAML reads it.
        vocabulary: the facts that exist. Without one any name is accepted, and the kind of a fact
            that the core does not know follows from its prefix or from the value.
        ops: every accepted spelling of an op, with the op's name. None accepts any.

    Raises:
        PredicateErrors: with every problem that was found.

    >>> p = match({"op": "gemm", "shape.K": "%16", "device": {"arch": ">=sm90"}})
    >>> p.why_not({"op": "gemm", "shape.K": 100, "device.arch": "sm80"})
    'shape.K=100 is not a multiple of 16; device.arch=sm80 is not >= sm90'
    """
    reader = _Reader(vocabulary, ops)
    predicate = reader.mapping(mapping, (), "")
    if reader.problems:
        raise PredicateErrors(tuple(reader.problems))
    return predicate


@attrs.define
class _Reader:
    vocabulary: Vocabulary | None
    ops: Mapping[str, str] | None
    problems: list[PredicateError] = attrs.field(factory=list)
    size: int = 0

    def complain(self, path: Path, value: object, message: str, hint: str | None = None, key: bool = False) -> None:
        self.problems.append(PredicateError(message, path=path, value=value, suggestion=hint, at_key=key))

    def count(self, path: Path) -> None:
        """Give up on a condition without end, such as one that aliases multiply."""
        self.size += 1
        if self.size > _MAX_SIZE:
            self.complain(path, None, f"more than {_MAX_SIZE} maps and values in one condition", "say less")
            raise PredicateErrors(tuple(self.problems))

    def mapping(self, node: object, path: Path, prefix: str) -> Predicate:
        if not isinstance(node, Mapping):
            self.complain(path, node, f"expected a map of facts, not {_kind_of(node)}", "for example {op: gemm}")
            return all_of()
        self.count(path)
        if len(path) > _MAX_DEPTH:  # also where an alias inside its own anchor ends
            self.complain(path, None, f"nested deeper than {_MAX_DEPTH} levels", "say it flatter")
            return all_of()
        return all_of(*self.entries(node, path, prefix))

    def entries(self, node: Mapping[Any, Any], path: Path, prefix: str) -> Iterator[Predicate]:
        for key, value in node.items():
            here = (*path, key)
            if not isinstance(key, str):
                self.complain(
                    here, value, f"a fact's name is text, not {_kind_of(key)}", "for example shape.M", key=True
                )
            elif key in _COMBINATORS and prefix:
                where = prefix.rstrip(".")
                self.complain(here, value, f"{key} cannot stand below {where!r}; move it up", key=True)
            elif key == "when":
                yield self.when(value, here)
            elif key in _COMBINATORS:
                parts = self.branches(key, value, here)
                yield {"any_of": any_of, "all_of": all_of, "none_of": none_of}[key](*parts)
            elif isinstance(value, Mapping):
                if not value:
                    self.complain(here, value, f"nothing is asked of {key!r}", f'a fact that is there: {key}: "*"')
                yield self.mapping(value, here, f"{prefix}{key}.")
            else:
                yield self.fact(prefix + key, value, here)

    def branches(self, key: str, value: object, path: Path) -> list[Predicate]:
        if not isinstance(value, list | tuple) or not value:
            self.complain(path, value, f"{key} takes a list of maps, at least one", f"write {key}: [{{…}}]")
            return []
        return [self.mapping(branch, (*path, n), "") for n, branch in enumerate(value)]

    def when(self, value: object, path: Path) -> Predicate:
        if isinstance(value, list | tuple) and value:
            return all_of(*(self.when(each, (*path, n)) for n, each in enumerate(value)))
        if not isinstance(value, Mapping):
            self.complain(path, value, "when takes a map with `if` and `then`", _WHEN)
            return all_of()
        for key in value:
            if key not in ("if", "then"):
                self.complain((*path, key), value[key], f"when has no {key!r}, only `if` and `then`", _WHEN, key=True)
        for key in ("if", "then"):
            if key not in value:
                self.complain(path, value, f"when lacks `{key}`", _WHEN)
                return all_of()
        condition = self.mapping(value["if"], (*path, "if"), "")
        return any_of(condition.negate(), self.mapping(value["then"], (*path, "then"), ""))

    def fact(self, name: str, value: object, path: Path) -> Predicate:
        spec = declared(name, self.vocabulary)
        if spec is None and self.vocabulary is not None:
            near = self.vocabulary.suggest(name) or self.vocabulary.suggest(name.replace("_", "."))
            word = did_you_mean(name, _COMBINATORS) or (f"did you mean `{near}`?" if near else None)
            self.complain(path, value, f"nothing declares a fact {name!r}", word, key=True)
            return all_of()
        if not isinstance(value, list | tuple):
            return self.scalar(name, spec, value, path)
        if not value:
            self.complain(
                path, value, f"{name} is given an empty list, which nothing can match", "null asks for absence"
            )
        return any_of(*(self.scalar(name, spec, each, (*path, n)) for n, each in enumerate(value)))

    def scalar(self, name: str, spec: FactSpec | None, value: object, path: Path) -> Predicate:
        self.count(path)
        if value is None:
            return Present(name, negated=True)
        try:
            return parse_value(name, spec or FactSpec(name, kind_by_value(value), ""), value, self.ops)
        except PredicateError as problem:
            self.complain(path, value, problem.message, problem.suggestion)
            return all_of()


def _kind_of(value: object) -> str:
    if value is None or value == "":
        return "nothing"
    return "a list" if isinstance(value, list | tuple) else f"{value!r:.40}"
