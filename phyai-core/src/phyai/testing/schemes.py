"""Quantization schemes to try: what the core's formats and the usual checkpoints have, and what a predicate names."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping

import attrs

from phyai.facts import FactValue
from phyai.predicates import Compare, MultipleOf, OneOf, Predicate
from phyai.quant.elements import ELEMENT_NAMES, element
from phyai.quant.scheme import NAMED, NVFP4, NVFP4_INPUT, QuantScheme, TensorQuant

_TOKEN_INT8 = TensorQuant("int8", "token", dynamic=True)
_TOKEN_FP8 = TensorQuant("fp8_e4m3", "token", dynamic=True)
_STATIC_FP8 = TensorQuant("fp8_e4m3", "tensor")
_STATIC_INT8 = TensorQuant("int8", "tensor")
_INPUTS = (
    _TOKEN_INT8, _TOKEN_FP8, _STATIC_FP8, _STATIC_INT8,
    TensorQuant("fp8_e4m3", "group", group_size=128, dynamic=True),
    TensorQuant("int8", "tensor", dynamic=True),
    TensorQuant("fp8_e4m3", "tensor", dynamic=True),
)  # fmt: skip
#: Element types that checkpoints store with scales in 16 or 8 bits beside quantized inputs.
_USUAL = ("int4", "int8", "fp8_e4m3", "fp4_e2m1")
_GROUPS = (32, 64, 128, 16)
_BLOCKS = ((128, 128), (1, 128))


def schemes(predicate: Predicate) -> tuple[tuple[QuantScheme, Mapping[str, FactValue]], ...]:
    """Schemes and their facts, usual ones first, with the group and block sizes that ``predicate`` speaks of."""
    groups = tuple(dict.fromkeys((*_numbers(predicate, "quant.group_size"), *_GROUPS)))
    block_n, block_k = (_numbers(predicate, f"quant.block_{axis}") for axis in "nk")
    return _pool(groups, tuple(dict.fromkeys((*itertools.product(block_n, block_k), *_BLOCKS))))


@functools.cache
def _pool(
    groups: tuple[int, ...], blocks: tuple[tuple[int, int], ...]
) -> tuple[tuple[QuantScheme, Mapping[str, FactValue]], ...]:
    return tuple((scheme, scheme.facts()) for scheme in _schemes(groups, blocks))


def _schemes(groups: tuple[int, ...], blocks: tuple[tuple[int, int], ...]) -> Iterator[QuantScheme]:
    weights = list(_weights(groups, blocks))
    yield from (QuantScheme(weight) for weight in weights)
    yield QuantScheme(NVFP4, NVFP4_INPUT)
    for weight in NAMED.values():
        for source in NAMED.values():
            if source != NVFP4:
                yield QuantScheme(weight, _dynamic(source))
    plain = [weight for weight in weights if weight.scale_dtype == "fp32"]
    yield from (QuantScheme(weight, given) for given in _INPUTS for weight in plain)
    for weight in plain:
        yield QuantScheme(weight, pre_scale=True)
        if weight.granularity == "group":
            yield QuantScheme(attrs.evolve(weight, g_idx=True))
    usual = [weight for weight in weights if weight.scale_dtype != "fp32" and weight.dtype in _USUAL]
    yield from (QuantScheme(weight, given) for given in _INPUTS for weight in usual)


def _weights(groups: tuple[int, ...], blocks: tuple[tuple[int, int], ...]) -> Iterator[TensorQuant]:
    yield from NAMED.values()
    usual = sorted(ELEMENT_NAMES, key=lambda name: (name not in ("int4", "int8", "fp8_e4m3", "uint4"), name))
    for name in usual:
        zero_points = (None,) if element(name).kind == "float" else (None, "int", "float")
        for zero_point, scale_dtype in itertools.product(zero_points, ("fp32", "bf16", "fp16")):
            extra = {"zero_point": zero_point, "scale_dtype": scale_dtype}
            for group in groups:
                yield TensorQuant(name, "group", group_size=group, **extra)  # type: ignore[arg-type]
            yield TensorQuant(name, "channel", **extra)  # type: ignore[arg-type]
            yield TensorQuant(name, "tensor", **extra)  # type: ignore[arg-type]
            for block in blocks:
                yield TensorQuant(name, "block", block_shape=block, **extra)  # type: ignore[arg-type]


def _dynamic(quant: TensorQuant) -> TensorQuant:
    return attrs.evolve(quant, dynamic=True)


def _numbers(predicate: Predicate, fact: str) -> list[int]:
    found: list[int] = []
    for literal in predicate.literals():
        if literal.fact != fact:
            continue
        if isinstance(literal, OneOf):
            found += [v for v in literal.values if isinstance(v, int)]
        elif isinstance(literal, MultipleOf):
            found += [literal.modulus, 3 * literal.modulus]
        elif isinstance(literal, Compare) and isinstance(literal.bound, int):
            found += [literal.bound - 1, literal.bound, literal.bound + 1]
    return [v for v in dict.fromkeys(found) if v > 0]
