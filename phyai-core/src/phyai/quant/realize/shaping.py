"""Cutting a quantized weight for tensor parallelism, and stacking the shards of a fused layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from phyai.errors import CheckpointError
from phyai.quant.formats import PLAIN
from phyai.quant.realize.bits import pack_bits, unpack_bits
from phyai.quant.weight import QuantizedWeight

if TYPE_CHECKING:
    import torch


def shard(weight: QuantizedWeight, dim: int, rank: int, world: int) -> QuantizedWeight:
    """Part ``rank`` of ``world`` equal parts of a plain weight, its scales cut with it.

    ``dim`` 0 cuts outputs, 1 cuts inputs (then ``pre_scale`` is cut too).

    Raises:
        CheckpointError: the size does not divide, a cut would split a group or a block of scales, or it
            would cut inputs that are grouped by ``g_idx``.
    """
    if weight.layout != PLAIN:
        raise CheckpointError(f"a weight in layout {weight.layout!r} must be unpacked before it is cut")
    size = weight.shape[dim]
    if size % world:
        raise CheckpointError(f"{size} {('outputs', 'inputs')[dim]} cannot be cut into {world} equal parts")
    begin, end = rank * size // world, (rank + 1) * size // world
    return _cut_outputs(weight, begin, end) if dim == 0 else _cut_inputs(weight, begin, end)


def _cut_outputs(weight: QuantizedWeight, begin: int, end: int) -> QuantizedWeight:
    quant, changes = weight.scheme.weight, {"codes": weight.codes[begin:end]}
    step = 1 if quant.block_shape is None else quant.block_shape[0]
    if begin % step or (end % step and end != weight.shape[0]):
        raise CheckpointError(f"outputs {begin} to {end} split a block of {step} that shares its scales")
    if quant.granularity != "tensor":
        rows = slice(begin // step, -(-end // step))
        changes |= {f: getattr(weight, f)[rows] for f in ("scale", "zero_point") if getattr(weight, f) is not None}
    return attrs.evolve(weight, shape=(end - begin, weight.shape[1]), **changes)


def _cut_inputs(weight: QuantizedWeight, begin: int, end: int) -> QuantizedWeight:
    quant, (n, k) = weight.scheme.weight, weight.shape
    codes = weight.codes
    if weight.g_idx is not None and (begin, end) != (0, k):
        raise CheckpointError("a weight whose inputs are grouped by g_idx cannot be cut along its inputs")
    if quant.bits < 8:
        codes = pack_bits(unpack_bits(codes, quant.bits, k)[:, begin:end].contiguous(), quant.bits)
    else:
        codes = codes[:, begin:end]
    changes: dict[str, Any] = {"codes": codes}
    if quant.granularity in ("group", "block"):
        step = quant.group_size or (quant.block_shape or (1, 1))[1]
        if begin % step or (end % step and end != k):
            raise CheckpointError(f"inputs {begin} to {end} split a group of {step} that shares its scales")
        columns = slice(begin // step, -(-end // step))
        changes |= {
            f: getattr(weight, f)[:, columns] for f in ("scale", "zero_point") if getattr(weight, f) is not None
        }
    if weight.pre_scale is not None:
        changes["pre_scale"] = weight.pre_scale[begin:end]
    return attrs.evolve(weight, shape=(n, end - begin), **changes)


@attrs.frozen(eq=False)
class FusedPart:
    """Consecutive shards of a fused layer that are one GEMM: their names, their weight, what was done."""

    names: tuple[str, ...]
    weight: QuantizedWeight | torch.Tensor
    notes: tuple[str, ...] = ()


def fuse(shards: Mapping[str, QuantizedWeight | torch.Tensor]) -> list[FusedPart]:
    """Stack the shards of a fused layer along the outputs, in order, as far as that is exact.

    Unequal scales per tensor become scales per channel. Neighbours whose scheme, static input scale, second
    scale, pre-scale or group index differ stay separate GEMMs, and the notes say so.
    """
    parts: list[tuple[list[str], list[Any]]] = []
    reasons: list[str] = []
    for name, weight in shards.items():
        reason = "" if not parts else _difference(parts[-1][1][-1], weight)
        if parts and not reason:
            parts[-1][0].append(name)
            parts[-1][1].append(weight)
        else:
            if parts:
                reasons.append(f"{parts[-1][0][-1]} and {name} stay separate GEMMs: {reason}")
            parts.append(([name], [weight]))
    return [_stack(names, weights, tuple(reasons)) for names, weights in parts]


def _difference(one: Any, other: Any) -> str:
    """Why two shards cannot share a GEMM; empty when they can."""
    import torch

    if isinstance(one, QuantizedWeight) != isinstance(other, QuantizedWeight):
        return "one is quantized and the other is not"
    if not isinstance(one, QuantizedWeight):
        return "" if one.dtype == other.dtype else f"they are {one.dtype} and {other.dtype}"
    if one.scheme != other.scheme:
        return f"their schemes differ ({one.scheme.name} and {other.scheme.name})"
    if one.scheme.weight.granularity == "block" and one.shape[0] % (one.scheme.weight.block_shape or (1,))[0]:
        return "a block of scales would straddle them"
    shared = {
        "input_scale": "static input scales", "input_zero_point": "input zero points",
        "output_scale": "output scales", "output_zero_point": "output zero points",
        "second_scale": "second scales", "pre_scale": "pre-scales", "g_idx": "group indices",
    }  # fmt: skip
    for field, words in shared.items():
        a, b = getattr(one, field), getattr(other, field)
        if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
            return f"their {words} differ"
    return ""


def _stack(names: Sequence[str], weights: Sequence[Any], notes: tuple[str, ...]) -> FusedPart:
    import torch

    first = weights[0]
    if len(weights) == 1:
        return FusedPart(tuple(names), first, notes)
    if not isinstance(first, QuantizedWeight):
        return FusedPart(tuple(names), torch.cat(list(weights)), notes)
    scheme = first.scheme
    if scheme.weight.granularity == "tensor" and not all(
        torch.equal(w.scale, first.scale) and _same(w.zero_point, first.zero_point) for w in weights
    ):
        weights = [_per_channel(w) for w in weights]
        scheme = weights[0].scheme
        notes = (*notes, f"{', '.join(names)}: unequal scales per tensor became scales per channel")
    changes: dict[str, Any] = {"codes": _cat([w.codes for w in weights])}
    if scheme.weight.granularity != "tensor":
        changes["scale"] = _cat([w.scale for w in weights])
        if first.zero_point is not None:
            changes["zero_point"] = _cat([w.zero_point for w in weights])
    rows = sum(w.shape[0] for w in weights)
    return FusedPart(
        tuple(names), attrs.evolve(weights[0], scheme=scheme, shape=(rows, first.shape[1]), **changes), notes
    )


def _cat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Concatenated along the outputs; 8-bit floats as bytes, which every device can do."""
    import torch

    if tensors[0].element_size() == 1 and tensors[0].is_floating_point():
        return torch.cat([t.view(torch.uint8) for t in tensors]).view(tensors[0].dtype)
    return torch.cat(list(tensors))


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    import torch

    return one is other if one is None or other is None else torch.equal(one, other)


def _per_channel(weight: QuantizedWeight) -> QuantizedWeight:
    scheme = attrs.evolve(weight.scheme, weight=attrs.evolve(weight.scheme.weight, granularity="channel"))
    n = weight.shape[0]
    zero = None if weight.zero_point is None else weight.zero_point.expand(n, 1).contiguous()
    return attrs.evolve(weight, scheme=scheme, scale=weight.scale.expand(n, 1).contiguous(), zero_point=zero)
