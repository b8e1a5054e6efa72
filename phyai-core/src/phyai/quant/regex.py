"""Matching untrusted regular expressions in bounded time.

Python's matcher tries one way after another, which a hostile pattern makes exponential. Here all ways are
followed at once: each piece of the pattern turns the set of positions where it may start into the set of
positions where it may end, so that the time is bounded by the sizes of the pattern and the text. Patterns with at
most two open-ended repeats, each of one character, cannot hurt Python's own matcher, and go to it.

>>> starts_with(".*self_attn[.](q|k|v)_proj$", "layers.0.self_attn.q_proj")
True
>>> starts_with("(a+)+$", "a" * 40 + "b")
False
"""

from __future__ import annotations

import functools
import re
from typing import Any

MAX_PATTERN = 1024  # characters
MAX_TEXT = 512  # characters
_MAX_DEPTH = 4  # open-ended repeats inside one another
_MAX_COUNT = 256  # of a counted repeat


class PatternError(ValueError):
    """A pattern that is malformed, or uses what is not supported."""


def starts_with(pattern: str, text: str) -> bool:
    """Whether ``pattern`` matches at the start of ``text``, as ``re.match`` says; no text over 512 characters does.

    Raises:
        PatternError: see :func:`check`.
    """
    compiled, tree = check(pattern)
    if len(text) > MAX_TEXT:
        return False
    if tree is None:
        return compiled.match(text) is not None
    return bool(_ends(tree, text, frozenset({0})))


@functools.lru_cache(maxsize=4096)
def check(pattern: str) -> tuple[re.Pattern[str], Any]:
    """The compiled pattern, and its parsed form where Python's own matcher could take too long.

    Raises:
        PatternError: over 1,024 characters, malformed, or with back-references, look-behind, conditions, inline
            flags, counted repeats over 256, or open-ended repeats nested more than four deep.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"a pattern of {len(pattern)} characters; at most {MAX_PATTERN} are allowed")
    try:
        compiled = re.compile(pattern)
        tree = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"{pattern!r} is not a regular expression: {error}") from None
    if compiled.flags != re.UNICODE.value:
        raise PatternError(f"{pattern!r}: inline flags are not supported")
    count, depth = _open_ended(tree, pattern)
    if depth > _MAX_DEPTH:
        raise PatternError(f"{pattern!r}: repeats are nested more than {_MAX_DEPTH} deep")
    return compiled, None if count <= 2 and depth <= 1 else tree


def _open_ended(tree: Any, pattern: str) -> tuple[int, int]:
    """How many repeats have no small bound, and how deep they nest."""
    total = deepest = 0
    for op, argument in tree:
        name = str(op)
        count = depth = 0
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, body = argument
            if low > _MAX_COUNT or (high != _MAXREPEAT and high > _MAX_COUNT):
                raise PatternError(f"{pattern!r}: counts over {_MAX_COUNT} are not supported")
            count, depth = _open_ended(body, pattern)
            if high > 1:
                simple = len(body) == 1 and str(body[0][0]) in _PIECES
                count, depth = count + 1, max(depth, not simple) + 1
        elif name == "BRANCH":
            parts = [_open_ended(branch, pattern) for branch in argument[1]]
            count, depth = sum(c for c, _ in parts), max(d for _, d in parts)
        elif name == "SUBPATTERN":
            count, depth = _open_ended(argument[3], pattern)
        elif name in ("ASSERT", "ASSERT_NOT") and argument[0] == 1:
            count, depth = _open_ended(argument[1], pattern)
        elif name not in (*_PIECES, "AT"):
            raise PatternError(f"{pattern!r}: {name.lower().replace('_', ' ')} is not supported")
        total, deepest = total + count, max(deepest, depth)
    return total, deepest


#: What matches exactly one character; a repeat of it alone is as cheap for Python's matcher as it looks.
_PIECES = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_MAXREPEAT = re._constants.MAXREPEAT  # type: ignore[attr-defined]


def _ends(tree: Any, text: str, starts: frozenset[int]) -> frozenset[int]:
    """The positions where ``tree`` may end, having started at one of ``starts``."""
    for op, argument in tree:
        if not starts:
            break
        starts = _step(str(op), argument, text, starts)
    return starts


def _step(op: str, argument: Any, text: str, starts: frozenset[int]) -> frozenset[int]:
    if op == "BRANCH":
        return frozenset().union(*(_ends(branch, text, starts) for branch in argument[1]))
    if op == "SUBPATTERN":
        return _ends(argument[3], text, starts)
    if op == "ASSERT":
        return frozenset(i for i in starts if _ends(argument[1], text, frozenset({i})))
    if op == "ASSERT_NOT":
        return frozenset(i for i in starts if not _ends(argument[1], text, frozenset({i})))
    if op == "AT":
        return frozenset(i for i in starts if _at(str(argument), text, i))
    if op in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, body = argument
        for _ in range(low):
            starts = _ends(body, text, starts)
        reached, frontier, count = starts, starts, low
        while frontier and count < high:
            frontier = _ends(body, text, frontier) - reached
            reached, count = reached | frontier, count + 1
        return reached
    return frozenset(i + 1 for i in starts if i < len(text) and _is(op, argument, text[i]))


def _at(where: str, text: str, i: int) -> bool:
    if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        return i == 0
    if where == "AT_END":
        return i == len(text) or (i == len(text) - 1 and text[i] == "\n")
    if where == "AT_END_STRING":
        return i == len(text)
    boundary = (i > 0 and _word(text[i - 1])) != (i < len(text) and _word(text[i]))
    return boundary == (where == "AT_BOUNDARY")


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _is(op: str, argument: Any, character: str) -> bool:
    """Whether one character is what a piece of the pattern stands for."""
    if op == "LITERAL":
        return character == chr(argument)
    if op == "NOT_LITERAL":
        return character != chr(argument)
    if op == "ANY":
        return character != "\n"
    if op == "RANGE":
        return bool(argument[0] <= ord(character) <= argument[1])
    if op == "CATEGORY":
        name = str(argument).removeprefix("CATEGORY_")
        kind = name.removeprefix("NOT_")
        found = {"DIGIT": character.isdecimal(), "SPACE": character.isspace(), "WORD": _word(character)}[kind]
        return found != name.startswith("NOT_")
    negated = bool(argument) and str(argument[0][0]) == "NEGATE"  # what is left is IN, a list of these
    return any(_is(str(o), a, character) for o, a in argument[negated:]) != negated
