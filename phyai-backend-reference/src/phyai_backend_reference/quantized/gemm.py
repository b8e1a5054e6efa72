"""Quantized GEMM in plain PyTorch: right before fast.

::

    x = x * pre_scale                                 # where the scheme has one
    x = dequantize(quantize(x, scheme.input))         # where the scheme quantizes inputs
    y = x @ dequantize(weight).T + bias
    y = dequantize(quantize(y, scheme.output))        # where the scheme quantizes outputs

A token is a row of ``x``, whatever its leading dimensions. Where weight and input are both integers, the
products are summed exactly, as an int32 accumulator does, within each pair of scales.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from phyai.facts import Facts
from phyai.kernel import Prepared, Resources
from phyai.quant.realize.codes import integer_codes
from phyai.quant.realize.dequantize import dequantize, effective_scale
from phyai.quant.realize.quantize import quantize_input
from phyai.quant.weight import QuantizedWeight
from phyai.refresh import in_place

from phyai_backend_reference.numerics import DTYPES, give, wide

#: ``product(x [M, K], weight) -> y [M, N]``, in x's dtype (fp32 or fp64).
Product = Callable[[torch.Tensor, QuantizedWeight], torch.Tensor]
#: Inputs that share their scales: which columns, the weight's group, the input's group.
Segment = tuple[slice | torch.Tensor, int, int]


def prepare_weight_only(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    return _prepare(facts, weights, weight_only)


def prepare_quantized_input(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    return _prepare(facts, weights, quantized_input)


def prepare_integer(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    parts = segments(weights["weight"])
    prepared = _prepare(facts, weights, lambda x, weight: integer(x, weight, parts))

    def refresh(new: Mapping[str, Any]) -> None:
        assert prepared.refresh is not None
        prepared.refresh(new)
        parts[:] = segments(weights["weight"])

    return attrs.evolve(prepared, refresh=refresh)


def weight_only(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """``x [M, K]`` times the dequantized weight, in x's dtype (fp32 or fp64)."""
    return x @ dequantize(weight).to(x.dtype).T


def quantized_input(x: torch.Tensor, weight: QuantizedWeight) -> torch.Tensor:
    """The input as its codes stand for it, times the dequantized weight."""
    assert weight.scheme.input is not None
    quantized = quantize_input(x, weight.scheme.input, weight.input_scale, weight.input_zero_point)
    return weight_only(quantized.dequantized(), weight)


def integer(x: torch.Tensor, weight: QuantizedWeight, parts: list[Segment]) -> torch.Tensor:
    """Integer codes times integer codes; ``parts`` are :func:`segments` of the weight.

    Products are summed exactly within each range of inputs that shares its scales; float64 holds every
    sum that an int32 accumulator holds. Zero points are taken off the codes before the product.
    """
    assert weight.scheme.input is not None
    quantized = quantize_input(x, weight.scheme.input, weight.input_scale, weight.input_zero_point)
    (n, k), quant = weight.shape, weight.scheme.weight
    codes = integer_codes(weight.codes, quant.dtype, k).to(torch.float64)
    values = quantized.values.to(torch.float64)
    scale = effective_scale(weight).to(torch.float64)
    y = torch.zeros(x.shape[0], n, dtype=torch.float64, device=x.device)
    for columns, group, input_group in parts:
        w, a = codes[:, columns], values[:, columns]
        if weight.zero_point is not None:
            w = w - _rows(weight.zero_point, group, quant.block_shape, n).to(torch.float64)
        if quantized.zero_point is not None:
            a = a - quantized.zero_point[:, input_group : input_group + 1]
        product = a @ w.T
        y += product * quantized.scale[:, input_group : input_group + 1] * _rows(scale, group, quant.block_shape, n).T
    return y.to(x.dtype)


def segments(weight: QuantizedWeight) -> list[Segment]:
    """The ranges of inputs over which products can be summed before they are scaled."""
    assert weight.scheme.input is not None
    quant, k = weight.scheme.weight, weight.shape[1]
    size = weight.scheme.input.group_size or k
    weight_size = quant.group_size or (quant.block_shape[1] if quant.block_shape else k)
    if weight.g_idx is None:
        edges = sorted({*range(0, k, weight_size), *range(0, k, size), k})
        return [(slice(a, b), a // weight_size, a // size) for a, b in itertools.pairwise(edges)]
    groups, inputs = weight.g_idx.long(), torch.arange(k, device=weight.g_idx.device) // size
    pairs = torch.unique(torch.stack([groups, inputs]), dim=1).T.tolist()
    return [(((groups == g) & (inputs == i)).nonzero().flatten(), g, i) for g, i in pairs]


def _rows(per_group: torch.Tensor, group: int, block: tuple[int, int] | None, n: int) -> torch.Tensor:
    """One group's values for every output row: ``[n, 1]`` or ``[1, 1]``."""
    column = per_group[:, group : group + 1]
    return column if block is None else column.repeat_interleave(block[0], dim=0)[:n]


def _prepare(facts: Facts, weights: Mapping[str, Any], product: Product) -> Prepared:
    weight: QuantizedWeight = weights["weight"]
    bias = weights.get("bias")
    dtype = DTYPES[str(facts["dtype.y"])]

    def run(x: torch.Tensor, out: torch.Tensor | None = None, state: object = None) -> torch.Tensor:
        rows = wide(x).reshape(-1, weight.shape[1])
        if weight.pre_scale is not None:
            rows = rows * weight.pre_scale.to(rows.dtype)
        y = product(rows, weight)
        if bias is not None:
            y = y + bias.to(y.dtype)
        if weight.scheme.output is not None:
            quantized = quantize_input(y, weight.scheme.output, weight.output_scale, weight.output_zero_point)
            y = quantized.dequantized()
        return give(y.reshape(*x.shape[:-1], weight.shape[0]), dtype, out)

    return Prepared(run, refresh=in_place(weights))
