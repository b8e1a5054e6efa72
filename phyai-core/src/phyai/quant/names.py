"""Matching module names: exact path, last segment, glob, bounded regular expression, class.

Patterns come from checkpoint configs and policy files, which are untrusted: regular expressions are matched in
bounded time (see :mod:`phyai.quant.regex`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

import attrs

from phyai.quant.regex import PatternError, check, starts_with

__all__ = ["FUSED", "KINDS", "Matcher", "PatternError", "aliases_of", "shards_of"]

#: Fused layers and the shards they are made of, by last name segment.
FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}

#: How a pattern is compared with a module's name.
KINDS: tuple[str, ...] = ("name", "path", "within", "glob", "regex", "module_cls")


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
            check(self.pattern)

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
        return starts_with(self.pattern, name)


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
