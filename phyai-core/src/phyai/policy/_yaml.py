"""YAML text as a tree of nodes that know where they stand.

Only the parser of ruamel.yaml is used, not its constructors: a file can say text, numbers, booleans, null, lists and
mappings with text keys, and nothing else. Size, depth and the expansion of aliases are bounded.

>>> root = read_yaml("rules:\\n  - {id: a}\\n", "p.yaml")
>>> node = root.value["rules"].value[0].value["id"]
>>> node.value, node.line, node.column
('a', 2, 10)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from phyai.policy._model import Location
from phyai.policy._node import Node
from phyai.policy._problems import Problem

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 100_000
MAX_DEPTH = 64
MAX_SCALAR = 10_000
MAX_LINE = 256 * 1024  # the parser takes more than linear time over one token

#: What to do about the parser's complaint: the mistakes that people make, by a piece of the message.
_ADVICE = (
    ("expected chomping or indentation", 'put quotes around what begins with `>`, as in ">=64"'),
    ("found character '\\t'", "indent with spaces"),
    ("that cannot start any token", 'put quotes around it, as in "%16"'),
    ("mapping values are not allowed", "put quotes around a text that has a colon, and indent keys of one map alike"),
    ("parsing a block", "indent what belongs together alike"),
    ("expected ',' or '}'", "close the `{` with `}`"),
    ("expected ',' or ']'", "close the `[` with `]`"),
    ("quoted scalar", "close the quotes"),
)

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}


class YamlProblem(Exception):
    """The text cannot be read at all."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def read_yaml(data: str | bytes, file: str) -> Node:
    """The one document in ``data``.

    Raises:
        YamlProblem: it is no YAML, or more than a policy may use of it.
    """
    if len(data) > MAX_BYTES:
        raise too_large(file, len(data))
    text = _decoded(data, file) if isinstance(data, bytes) else data
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_LINE:
            raise _problem(
                file, number, 1, f"a line of {len(line):,} characters", None, f"at most {MAX_LINE:,} are read"
            )
    return _Composer(text.removeprefix("\ufeff"), file).document()


def too_large(file: str, size: int) -> YamlProblem:
    """The refusal of a file that is no policy file by its size."""
    what = f"the file has {size:,} bytes; a policy file may have {MAX_BYTES:,}"
    return _problem(file, 1, 1, what, None, "is it the right file?")


def _decoded(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8", "replace")
        line, column = _position(good, len(good))
        got = f"byte 0x{data[error.start]:02x}"
        raise _problem(file, line, column, "the file is not UTF-8", got, "save it as UTF-8") from None


def _position(text: str, index: int) -> tuple[int, int]:
    before = text[:index]
    return before.count("\n") + 1, index - before.rfind("\n")


def _problem(
    file: str, line: int, column: int, message: str, got: str | None = None, suggestion: str | None = None
) -> YamlProblem:
    return YamlProblem(Problem(Location(file, line, column), message, got, suggestion))


class _Composer:
    """Builds nodes from the parser's events, one pass, with every bound checked on the way."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._text = text
        self._at = (1, 1)
        self._anchors: dict[str, Node | None] = {}  # None while the anchored node is still being read
        self._size = 0
        self._events = self._parse()

    def _parse(self) -> Iterator[Any]:
        try:
            yield from YAML(typ="safe", pure=True).parse(self._text)
        except YAMLError as error:
            raise self._syntax(error) from None
        except (ValueError, OverflowError, IndexError, AssertionError, AttributeError, TypeError, KeyError) as error:
            # The parser stumbles over some broken input (an escape beyond Unicode, say) instead of refusing it.
            raise self.problem(self._at, "not valid YAML", suggestion=f"the parser says: {error}") from None

    def _syntax(self, error: YAMLError) -> YamlProblem:
        if isinstance(error, MarkedYAMLError) and (mark := error.problem_mark or error.context_mark) is not None:
            context = f"{error.context}: " if error.context else ""
            line = self._text.split("\n")[mark.line : mark.line + 1]
            got = line[0].strip()[:60] if line else None
            message = f"not valid YAML: {context}{error.problem or 'cannot go on here'}"
            advice = next((advice for piece, advice in _ADVICE if piece in message), "see https://yaml.org")
            return self.problem(
                (mark.line + 1, mark.column + 1), " ".join(message.split()), got or "end of file", advice
            )
        index = getattr(error, "position", None)
        if isinstance(index, int):
            got = f"character U+{ord(self._text[index]):04X}" if index < len(self._text) else None
            return self.problem(_position(self._text, index), "a character that YAML does not allow", got, "remove it")
        return self.problem(self._at, f"not valid YAML: {' '.join(str(error).split())}")

    def problem(
        self, at: tuple[int, int], message: str, got: str | None = None, suggestion: str | None = None
    ) -> YamlProblem:
        return _problem(self._file, *at, message, got, suggestion)

    def document(self) -> Node:
        root: Node | None = None
        for event in self._events:
            self._here(event)
            if isinstance(event, AliasEvent | ScalarEvent | SequenceStartEvent | MappingStartEvent):
                if root is not None:
                    raise self.problem(self._at, "a second document", suggestion="a policy file holds one document")
                root = self._node(event, 1)
        return root or Node(None, 1, 1)

    def _here(self, event: Any) -> tuple[int, int]:
        self._at = (event.start_mark.line + 1, event.start_mark.column + 1)
        return self._at

    def _node(self, event: Any, depth: int) -> Node:
        at = self._here(event)
        if isinstance(event, AliasEvent):
            return self._alias(event, at, depth)
        if event.tag is not None and event.tag != "":
            raise self.problem(at, "tags are not allowed in a policy file", str(event.tag), "write the plain value")
        if depth > MAX_DEPTH:
            raise self.problem(at, f"nested more than {MAX_DEPTH} deep", suggestion="write it flatter")
        self._count(1, at)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, ScalarEvent):
            node = self._scalar(event, at)
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(at, depth)
        else:
            node = self._mapping(at, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _count(self, size: int, at: tuple[int, int]) -> None:
        self._size += size
        if self._size > MAX_NODES:
            raise self.problem(
                at, f"the file holds more than {MAX_NODES:,} values, aliases expanded", suggestion="say less"
            )

    def _alias(self, event: Any, at: tuple[int, int], depth: int) -> Node:
        name = event.anchor
        if name not in self._anchors:
            raise self.problem(at, "an alias without an anchor", f"*{name}", f'quote a glob, as in "*{name}"')
        node = self._anchors[name]
        if node is None:
            raise self.problem(at, "an alias that contains itself", f"*{name}", "write the inner value out")
        self._count(node.size, at)
        if depth + node.height - 1 > MAX_DEPTH:
            raise self.problem(
                at, f"nested more than {MAX_DEPTH} deep, aliases expanded", f"*{name}", "write it flatter"
            )
        return node

    def _scalar(self, event: Any, at: tuple[int, int]) -> Node:
        text = event.value
        if len(text) > MAX_SCALAR:
            raise self.problem(
                at, f"a value of {len(text):,} characters", text[:60], f"at most {MAX_SCALAR:,} are read"
            )
        return Node(_resolve(text) if event.implicit[0] else text, *at, text=text)

    def _sequence(self, at: tuple[int, int], depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._node(event, depth + 1))
        return _parent(tuple(items), items, at)

    def _mapping(self, at: tuple[int, int], depth: int) -> Node:
        items: dict[str, Node] = {}
        keys: dict[str, tuple[int, int]] = {}
        merged: list[Node] = []
        while not isinstance(event := next(self._events), MappingEndEvent):
            place = self._here(event)
            key = self._node(event, depth + 1)
            if key.is_map or key.is_list:
                raise self.problem(place, "a key must be text", key.shown(), "a list or map can only be a value")
            if key.text == "<<" and isinstance(event, ScalarEvent) and event.implicit[0]:
                merged += self._merge(self._node(next(self._events), depth + 1), place)
                continue
            if key.text in items:
                line = keys[key.text][0]
                raise self.problem(place, f"a key that is already there, in line {line}", key.text, "keep one of them")
            keys[key.text] = place
            items[key.text] = self._node(next(self._events), depth + 1)
        for source in merged:
            for name, child in source.value.items():
                if name not in items:
                    items[name], keys[name] = child, source.keys[name]
        return _parent(items, items.values(), at, keys)

    def _merge(self, source: Node, at: tuple[int, int]) -> list[Node]:
        sources = list(source.value) if source.is_list else [source]
        if not all(node.is_map for node in sources):
            raise self.problem(
                at, "`<<` merges mappings only", source.shown(), "write `<<: *name` for a mapping with `&name`"
            )
        return sources


def _parent(value: Any, children: Any, at: tuple[int, int], keys: dict[str, tuple[int, int]] | None = None) -> Node:
    size, height = 1, 1
    for child in children:
        size += child.size
        height = max(height, child.height + 1)
    return Node(value, *at, keys=keys or {}, size=size, height=height)


def _resolve(text: str) -> bool | int | float | str | None:
    """What a plain scalar means, by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or len(text) > 40:
        return text
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    number = float(text) if _FLOAT.fullmatch(text) else math.inf
    return number if math.isfinite(number) else text
