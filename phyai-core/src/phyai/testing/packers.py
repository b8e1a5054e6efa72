"""Packers: unpacking what was packed gives the same weight, bit for bit, for every scheme that a format claims."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from phyai.catalog import Catalog
from phyai.environment import Environment
from phyai.predicates import FALSE, Predicate
from phyai.quant.scheme import QuantScheme
from phyai.testing.memory import same_bits
from phyai.testing.quantized import quantized_weight
from phyai.testing.report import CheckReport, Outcome, SubjectReport
from phyai.testing.schemes import schemes
from phyai.testing.values import interesting

#: Sizes of [N, K] to try beside those that the predicate speaks of: odd ones are where packing goes wrong.
_SIZES = (1, 2, 3, 7, 8, 16, 17, 33, 64, 100, 128, 129, 256)
_ELEMENTS = 1 << 16
#: So many schemes are tried, the first of every kind before the second.
_SCHEMES = 200
#: Round trips per call that a kernel would get: they are quick.
_PER_CALL = 10


def examine_format(
    record: Any, catalog: Catalog, environment: Environment, *, seconds: float, seed: int = 0, calls: int = 100
) -> SubjectReport:
    """Every scheme that a quantization format claims, in several sizes, until the time is up."""
    deadline = time.monotonic() + seconds
    device = environment.device
    where = f"{device.type}:{device.index}" if device.type != "cpu" else "cpu"
    tried = 0
    for scheme, n, k in _claimed(record, environment):
        if tried and (time.monotonic() >= deadline or tried >= calls * _PER_CALL):
            break
        tried += 1
        problem = round_trip(record, scheme, n, k, device=where, seed=seed)
        if problem is not None:
            reason = f"{scheme.name} [{n}, {k}]: {problem}"
            call = {"scheme": scheme.to_dict(), "N": n, "K": k}
            line = shlex.join(["phyai", "conformance", record.backend, "--check", "packer", "--seed", str(seed)])
            return SubjectReport(
                record.name, "format", (CheckReport("packer", Outcome.FAILED, tried, reason, call, line),)
            )
    if not tried:
        residue = record.when.given(environment.facts())
        why = f"no scheme and size that it claims was found on {device}: {residue}"
        outcome = Outcome.SKIPPED if _elsewhere(record, environment) else Outcome.FAILED
        return SubjectReport(record.name, "format", (CheckReport("packer", outcome, reason=why),), why)
    return SubjectReport(record.name, "format", (CheckReport("packer", Outcome.PASSED, tried),))


def round_trip(record: Any, scheme: QuantScheme, n: int, k: int, *, device: str = "cpu", seed: int = 0) -> str | None:
    """None when ``unpack(pack(weight))`` is the weight; else what differs."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weight = quantized_weight(torch.randn(n, k, generator=generator), scheme, seed=seed).to(device)
    before = attrs.evolve(weight, **{name: t.clone() for name, t in weight.tensors().items()})
    try:
        packed = record.load_pack()(weight)
        back = record.load_unpack()(packed)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if packed.layout != record.layout:
        return f"pack gives the layout {packed.layout!r}; the format declares {record.layout!r}"
    if (problem := _difference(before, weight)) is not None:
        return f"pack changes the weight that it is given: {problem}"
    if back.scheme != weight.scheme or tuple(back.shape) != tuple(weight.shape):
        return "unpack gives another scheme or shape than was packed"
    return _difference(before, back)


def _difference(one: Any, other: Any) -> str | None:
    a, b = _tensors(one), _tensors(other)
    if a.keys() != b.keys():
        return f"has the tensors {', '.join(sorted(b))}, not {', '.join(sorted(a))}"
    for name in a:
        if not same_bits(a[name], b[name]):
            return f"{name} is not what was packed"
    return None


def _tensors(weight: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = weight.tensors()
    return found


def _claimed(record: Any, environment: Environment) -> Iterator[tuple[QuantScheme, int, int]]:
    """Claimed schemes and sizes: every scheme in one size, then in the others."""
    sizes = {axis: _axis(record, axis) for axis in "NK"}
    shapes = sorted(((n, k) for n in sizes["N"] for k in sizes["K"] if n * k <= _ELEMENTS), key=lambda s: s[0] * s[1])
    found: list[tuple[QuantScheme, list[tuple[int, int]]]] = []
    for scheme, claim in itertools.islice(_by_kind(_schemes_of(record, environment)), _SCHEMES):
        fitting = [(n, k) for n, k in shapes if claim.holds({"shape.N": n, "shape.K": k})]
        if fitting:
            found.append((scheme, _spread(fitting)))
    for turn in range(max((len(shapes) for _, shapes in found), default=0)):
        for number, (scheme, shapes) in enumerate(found):  # another size for each, so that all come up early
            if turn < len(shapes):
                yield scheme, *shapes[(turn + number) % len(shapes)]


def _schemes_of(record: Any, environment: Environment) -> Iterator[tuple[QuantScheme, Predicate]]:
    """Every scheme that the format may hold here, and what it asks of the weight's sizes."""
    here = record.when.given({"quant.layout": "plain", "op": "gemm", **environment.facts()})
    for scheme, quant in schemes(record.when):
        stored = scheme.weight.dtype if scheme.weight.bits == 8 else "uint8"
        facts = {**quant, "dtype.weight": stored, "dtype.x": "bf16", "dtype.y": "bf16"}
        claim = here.given(facts, absent=_Unsaid())
        if claim != FALSE:
            yield scheme, claim


def _by_kind(found: Iterable[tuple[QuantScheme, Predicate]]) -> Iterator[tuple[QuantScheme, Predicate]]:
    """The first scheme of every kind (element type, granularity, zero point), then the second of each, and so on."""
    kinds: dict[Any, list[tuple[QuantScheme, Predicate]]] = {}
    for scheme, claim in found:
        weight = scheme.weight
        kinds.setdefault((weight.dtype, weight.granularity, weight.zero_point), []).append((scheme, claim))
    for turn in itertools.zip_longest(*kinds.values()):
        yield from (pair for pair in turn if pair is not None)


class _Unsaid:
    """Every fact but the two sizes: what a scheme does not say, it does not have."""

    def __contains__(self, name: object) -> bool:
        return name not in ("shape.N", "shape.K")


def _spread(shapes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Shapes with the smallest first, then the largest, then those between, odd ones before even ones."""
    odd_first = sorted(shapes[1:-1], key=lambda s: (-(s[0] % 2) - (s[1] % 2), s[0] * s[1]))
    return list(dict.fromkeys([shapes[0], shapes[-1], *odd_first]))[:24]


def _axis(record: Any, axis: str) -> tuple[int, ...]:
    literals = [literal for literal in record.when.literals() if literal.fact == f"shape.{axis}"]
    spoken = [v for v in interesting(literals) if isinstance(v, int)]
    return tuple(sorted({v for v in (*_SIZES, *spoken) if v >= 1}))


def _elsewhere(record: Any, environment: Environment) -> bool:
    """Whether another machine is needed: its predicate cannot hold with this one's facts."""
    known = environment.facts()
    asked = {name for name in record.when.facts if name.startswith(("device.", "lib."))}
    return bool(record.when.given(known, absent=asked - known.keys()) == FALSE)
