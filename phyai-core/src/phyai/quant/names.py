"""Matching module names: exact path, last segment, glob, bounded regular expression, class.

Patterns come from checkpoint configs and policy files, which are untrusted: regular expressions are
limited so that matching one against a name cannot run away (see :func:`check_regex`).
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping, Sequence

import attrs

#: Fused layers and the shards they are made of, by last name segment.
FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}

#: How a pattern is compared with a module's name.
KINDS: tuple[str, ...] = ("name", "path", "within", "glob", "regex", "module_cls")

MAX_PATTERN = 1024
MAX_NAME = 512
_MAX_UNBOUNDED = 8


class PatternError(ValueError):
    """A pattern that is malformed or could take unreasonably long to match."""


@functools.lru_cache(maxsize=4096)
def check_regex(pattern: str) -> re.Pattern[str]:
    """Compile ``pattern`` if matching it is bounded.

    Refused are back-references, a repeat without an upper bound inside another repeat (exponential
    time), more than eight repeats without an upper bound, and patterns over 1,024 characters.

    >>> check_regex(r".*self_attn\\.(q|k|v)_proj$").match("layers.0.self_attn.q_proj") is not None
    True
    >>> check_regex(r"(a+)+$")
    Traceback (most recent call last):
    ...
    phyai.quant.names.PatternError: '(a+)+$': a repeat inside a repeat could take exponential time
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"a pattern of {len(pattern)} characters; at most {MAX_PATTERN} are allowed")
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise PatternError(f"{pattern!r} is not a regular expression: {error}") from None
    unbounded = _count_unbounded(re._parser.parse(pattern), inside=False, pattern=pattern)  # type: ignore[attr-defined]
    if unbounded > _MAX_UNBOUNDED:
        raise PatternError(f"{pattern!r} has {unbounded} unbounded repeats; at most {_MAX_UNBOUNDED} are allowed")
    return compiled


def _count_unbounded(tree: object, *, inside: bool, pattern: str) -> int:
    count = 0
    for op, argument in tree:  # type: ignore[attr-defined]
        name = str(op)
        if name in ("GROUPREF", "GROUPREF_EXISTS"):
            raise PatternError(f"{pattern!r}: back-references are not allowed")
        if name.endswith("REPEAT"):
            low, high, body = argument
            wide = high - low > 1  # not a fixed count, and not '?'
            if wide and inside:
                raise PatternError(f"{pattern!r}: a repeat inside a repeat could take exponential time")
            count += wide
            count += _count_unbounded(body, inside=inside or high > 1, pattern=pattern)
        elif name == "BRANCH":
            count += sum(_count_unbounded(branch, inside=inside, pattern=pattern) for branch in argument[1])
        elif name in ("SUBPATTERN", "ASSERT", "ASSERT_NOT", "ATOMIC_GROUP"):
            body = argument[-1] if isinstance(argument, tuple) else argument
            count += _count_unbounded(body, inside=inside, pattern=pattern)
    return count


@attrs.frozen
class Matcher:
    """One condition on a module.

    ``name``: the whole path, or its last segment. ``path``: the whole path only. ``within``: that module
    or any below it. ``glob``: shell wildcards over the whole path. ``regex``: matches from the start of
    the path (as ``re.match``). ``module_cls``: the class name, exactly.

    >>> Matcher("name", "q_proj").matches("layers.0.q_proj"), Matcher("path", "q_proj").matches("layers.0.q_proj")
    (True, False)
    >>> Matcher("glob", "layers.1.*").matches("layers.10.mlp")
    False
    """

    kind: str = attrs.field(validator=attrs.validators.in_(KINDS))
    pattern: str

    def __attrs_post_init__(self) -> None:
        if self.kind == "regex":
            check_regex(self.pattern)

    def matches(self, name: str, module_cls: str | None = None) -> bool:
        if self.kind == "module_cls":
            return module_cls == self.pattern
        if self.kind == "name":
            return self.pattern in (name, name.rpartition(".")[2])
        if self.kind == "path":
            return name == self.pattern
        if self.kind == "within":
            return name == self.pattern or name.startswith(self.pattern + ".")
        if self.kind == "glob":
            return fnmatch.fnmatchcase(name, self.pattern)
        return len(name) <= MAX_NAME and check_regex(self.pattern).match(name) is not None


def shards_of(name: str, fused: Mapping[str, Sequence[str]] = FUSED) -> tuple[str, ...]:
    """The names of the shards that make up a fused layer; the name itself when it is not fused.

    >>> shards_of("layers.0.self_attn.qkv_proj")
    ('layers.0.self_attn.q_proj', 'layers.0.self_attn.k_proj', 'layers.0.self_attn.v_proj')
    """
    head, dot, last = name.rpartition(".")
    return tuple(head + dot + shard for shard in fused.get(last, (last,)))


def aliases_of(name: str, fused: Mapping[str, Sequence[str]] = FUSED) -> tuple[str, ...]:
    """The name, then the name of the fused layer that it may be a shard of.

    >>> aliases_of("mlp.up_proj")
    ('mlp.up_proj', 'mlp.gate_up_proj')
    """
    head, dot, last = name.rpartition(".")
    return (name, *(head + dot + whole for whole, shards in fused.items() if last in shards))
