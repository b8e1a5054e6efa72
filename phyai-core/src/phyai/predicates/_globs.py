"""Globs on names: ``*`` any run of characters, ``?`` any one, ``[abc]`` ``[a-z]`` ``[!abc]`` a set.

A pattern is parsed into tokens once; matching goes through a regular expression built from them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import attrs

from phyai.predicates._errors import PredicateError

_MAX_RANGE = 127


@attrs.frozen
class Token:
    """One character out of ``chars`` (or out of all others when ``inverted``), or a run of any (``star``)."""

    chars: frozenset[str] = frozenset()
    inverted: bool = False
    star: bool = False

    def takes(self, char: str) -> bool:
        return (char in self.chars) is not self.inverted


STAR = Token(star=True)
ANY = Token(inverted=True)


def is_glob(text: str) -> bool:
    """Whether ``text`` has a wildcard; only then is it a pattern and not a name."""
    return any(c in text for c in "*?[")


@functools.lru_cache(maxsize=1024)
def tokens(pattern: str) -> tuple[Token, ...]:
    """The pattern's tokens. A ``[`` that is never closed stands for itself."""
    found: list[Token] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        position += 1
        if char == "*":
            if not found or found[-1] is not STAR:
                found.append(STAR)
        elif char == "?":
            found.append(ANY)
        elif char == "[":
            inverted = pattern.startswith("!", position)
            start = position + inverted
            end = pattern.find("]", start + 1)  # a `]` that comes first is a member
            if end < 0:
                found.append(Token(frozenset("[")))
                continue
            found.append(Token(_members(pattern[start:end]), inverted))
            position = end + 1
        else:
            found.append(Token(frozenset(char)))
    return tuple(found)


def _members(body: str) -> frozenset[str]:
    chars: set[str] = set()
    position = 0
    while position < len(body):
        if body[position + 1 : position + 2] == "-" and position + 2 < len(body):
            first, last = ord(body[position]), ord(body[position + 2])
            if last - first > _MAX_RANGE:
                raise PredicateError(f"the range {body[position : position + 3]} is too wide", value=body)
            chars.update(map(chr, range(first, last + 1)))
            position += 3
        else:
            chars.add(body[position])
            position += 1
    return frozenset(chars)


@functools.lru_cache(maxsize=1024)
def compile_glob(pattern: str) -> Callable[[str], object]:
    """A function that is truthy for the names that the pattern matches.

    What stands between two stars is taken at its first place and never moved (an atomic group), which finds every
    match there is and keeps the time linear, whatever the pattern.
    """
    pieces = [""]
    for token in tokens(pattern):
        if token.star:
            pieces.append("")
        elif not token.chars:
            pieces[-1] += "." if token.inverted else "(?!)"
        else:
            members = "".join(map(re.escape, sorted(token.chars)))
            pieces[-1] += f"[{'^' if token.inverted else ''}{members}]"
    first, *middle = pieces
    last = f".*{middle.pop()}" if middle else ""
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + last, re.DOTALL).fullmatch
