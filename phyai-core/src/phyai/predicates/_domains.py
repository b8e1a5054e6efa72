"""One value of one fact that satisfies all literals about it, or the proof that there is none."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Final

from packaging.version import Version

from phyai.facts import FactKind, FactSpec, FactValue
from phyai.predicates._algebra import Literal
from phyai.predicates._literals import Contains, Glob, OneOf, Present
from phyai.predicates._names import find_name
from phyai.predicates._numbers import find_number
from phyai.predicates._order import KNOWN_ARCHS, arch_key, first_of, public_version


class Absent:
    """The fact is not there; a class so that type checkers can tell it from a value."""


ABSENT: Final = Absent()

#: Values to try first, so that a witness reads like a call that somebody makes.
_PLAUSIBLE: dict[str, tuple[str, ...]] = {
    "op": ("gemm", "attention"),
    "role": ("expert", "prefix", "vision"),
    "layer": ("expert.layers.0.mlp.down_proj",),
    "phase": ("denoise",),
    "model.family": ("pi05", "pi0"),
    "device.type": ("cuda", "cpu"),
    "device.vendor": ("nvidia", "amd"),
    "device.name": ("NVIDIA H200",),
    "quant.scheme": ("w4a16_g128", "w8a16"),
    "quant.format": ("int4", "fp8_e4m3"),
    "quant.layout": ("plain", "humming"),
}
_PLAUSIBLE_DTYPES = ("bf16", "fp16", "fp32", "int32", "bool")
_PLAUSIBLE_ARCHS = ("sm90", "sm80", "sm120")


def find_value(literals: tuple[Literal, ...], spec: FactSpec) -> FactValue | Absent | None:
    """A value that every literal accepts and the declaration allows; None when there is none."""
    if len(literals) == 1:
        only = literals[0]
        if isinstance(only, OneOf) and not only.negated and only.kind is not FactKind.NUMBER and spec.values is None:
            return only.values[0]
    tests = literals
    if any(isinstance(literal, Present) for literal in literals):
        if any(isinstance(literal, Present) and literal.negated for literal in literals):
            return ABSENT if all(literal.accepts(None) for literal in literals) else None
        tests = tuple(literal for literal in literals if not isinstance(literal, Present))
    kinds = {literal.kind for literal in tests}  # type: ignore[attr-defined]
    if len(kinds) > 1:
        return None  # a value is of one kind
    kind = kinds.pop() if kinds else spec.kind
    if kind is FactKind.NUMBER:
        found = find_number(tests, minimum=max(spec.minimum, 1), integer=spec.integer)  # calls are seldom empty
        return found if found is not None else find_number(tests, minimum=spec.minimum, integer=spec.integer)
    if kind is FactKind.SET:
        return _find_set(tests)
    if kind is FactKind.FLAG:
        return _first((True, False), tests)
    if kind is FactKind.NAME and spec.values is not None:
        return _first(spec.values, tests)
    for test in tests:
        if isinstance(test, OneOf) and not test.negated:
            return _first(test.values, tests)
    return _search(kind, tests, spec.name)


def _first(values: Iterable[FactValue], tests: Iterable[Literal]) -> FactValue | None:
    return next((v for v in values if all(test.accepts(v) for test in tests)), None)


@functools.lru_cache(maxsize=4096)  # the same few conditions on architectures and versions meet again and again
def _search(kind: FactKind, tests: tuple[Literal, ...], fact: str) -> FactValue | None:
    """The first acceptable one among values of which one is acceptable, if any at all is."""
    if kind is FactKind.NAME:
        return _first(_names(tests, fact), tests)
    bounds = [str(v) for t in tests for v in (t.values if isinstance(t, OneOf) else (t.bound,))]  # type: ignore[attr-defined]
    return _first(_archs(bounds) if kind is FactKind.ARCH else _versions(bounds), tests)


def _names(tests: Sequence[Literal], fact: str) -> Iterable[str]:
    yield from _PLAUSIBLE_DTYPES if "dtype." in fact else _PLAUSIBLE.get(fact, ())
    yield from (v for t in tests if isinstance(t, Glob) and not t.negated for v in _fillings(t.pattern))
    found = find_name(
        [t.pattern for t in tests if isinstance(t, Glob) and not t.negated],
        [t.pattern for t in tests if isinstance(t, Glob) and t.negated],
        [str(v) for t in tests if isinstance(t, OneOf) for v in t.values],
    )
    if found is not None:
        yield found


def _fillings(pattern: str) -> Iterable[str]:
    for filling in ("x", "y", ""):
        name = pattern.replace("*", filling).replace("?", filling or "x")
        if name:
            yield name


def _archs(bounds: Iterable[str]) -> Iterable[str]:
    """Those that exist, those that are named, and one beyond each of these."""
    yield from _PLAUSIBLE_ARCHS
    yield from KNOWN_ARCHS
    yield from bounds
    last = max((key[1][0] for b in bounds if (key := arch_key(b)) is not None and key[0] == "sm"), default=0)
    yield f"sm{max(last, 121) + 1}"
    yield "gfx9999"


def _versions(bounds: Iterable[str]) -> Iterable[str]:
    """For every place at which some comparison with a bound changes, the least version above it.

    The truth of every literal is constant between those places, so one version of each stretch is enough.
    """
    yield "1.0"
    found = [v for v in map(public_version, bounds) if v is not None]
    longest = max((len(v.release) for v in found), default=1)
    for version in found:
        yield str(version)
        yield str(first_of(version))
        yield str(_next(version))
        # Above a release and all its post-releases there is no least version; this one is below
        # everything that could be written with as many numbers as the longest bound.
        zeros = (0,) * (longest - len(version.release))
        epoch = f"{version.epoch}!" if version.epoch else ""
        yield epoch + ".".join(map(str, (*version.release, *zeros, 0, 1))) + ".dev0"
    yield "0.dev0"


def _next(version: Version) -> Version:
    """The least version above ``version``."""
    if version.dev is not None:
        return Version(f"{str(version).rpartition('dev')[0]}dev{version.dev + 1}")
    if version.post is not None:
        return Version(f"{str(version).rpartition('post')[0]}post{version.post + 1}.dev0")
    return Version(f"{version}.post0.dev0")


def _find_set(tests: Sequence[Literal]) -> frozenset[str] | None:
    groups = [t for t in tests if isinstance(t, Contains)]
    forbidden = {e for t in groups if t.negated for e in t.elements}
    chosen = set()
    for group in groups:
        if not group.negated:
            allowed = [e for e in group.elements if e not in forbidden]
            if not allowed:
                return None
            chosen.add(allowed[0])
    return frozenset(chosen)
