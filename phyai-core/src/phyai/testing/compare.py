"""Whether a kernel's numbers are right: against float64, under the op's tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from phyai.composite import innermost
from phyai.op import DEFAULT_TOLERANCE, Op, Tolerance

if TYPE_CHECKING:
    import torch

#: One code to either side, in few places: where a value lies between two codes, both are right.
CODES: Mapping[str, Tolerance] = {
    "int8": Tolerance(0.0, 1.0, 2e-2),
    "uint8": Tolerance(0.0, 1.0, 2e-2),
    "fp8_e4m3": Tolerance(0.125, 2.0**-9, 2e-2),
    "fp8_e5m2": Tolerance(0.25, 2.0**-16, 4e-2),
}
_EXACT = Tolerance(0.0, 0.0, 0.0)
#: A product of inputs that are quantized on the way: some of them may have got the other of two codes.
QUANTIZED_INPUT = Tolerance(4e-2, 6e-2, 2e-2)
#: The same of an input that other arithmetic has computed, such as what lies between two quantized products: a value
#: within its error of the border between two codes gets the other one. In FP8 (e4m3) a step is at most 1/8 of the
#: value, and a value with a relative error of e crosses a border with a probability of e over the step, so the results
#: err by up to sqrt(e / 8) in the norm: 2.2e-2 for e = 2^-8, two roundings to bf16. One element errs most where the
#: largest value of a row crosses, by a step of 32 where the largest code is 448, 1/14 of no more than the row's norm,
#: times a large weight, 3.5 times a usual one: 0.25 of what the results of that row usually are.
QUANTIZED_BETWEEN = Tolerance(4e-2, 6e-2, 3e-2, 0.25)
#: Two such products, one behind the other: by what the first errs, 2.2e-2, an input of the second crosses borders, and
#: the results err by sqrt(2.2e-2 / 8) = 5.2e-2 beside that, 5.7e-2 together. Nothing wider was derived for more.
QUANTIZED_TWICE = Tolerance(4e-2, 6e-2, 8e-2, 0.5)
#: Sums over parts of K that meet in the output's type (``accumulation: output``), of what the results of a row usually
#: are: such a sum is at most some four times as large, and is rounded, as is each of four sums of two. Where they
#: cancel each other, or the bias, the error stays: 4 * 4 half units in the last place.
ROUNDED_SUMS: Mapping[str, float] = {"fp16": 16 * 2.0**-12, "bf16": 16 * 2.0**-9}


def tolerance_of(
    op: Op, name: str, dtypes: Mapping[str, str], *, through: Iterable[str] = (), quantized_input: bool = False,
    accumulation: str = "fp32",
) -> Tolerance:  # fmt: skip
    """What the result ``name`` is held to.

    It may be computed ``through`` tensors of other dtypes (an input that is mutated first, what lies between the parts
    of a composite op), and is not held to more than they are. ``accumulation`` is the kernel's (see
    :class:`phyai.kernel.Numerics`).

    A result in fp64 is held to fp64's tolerance only where every float of the call is fp64.
    """
    dtype = dtypes[name]
    own = op.tolerance.get(dtype) or CODES.get(dtype)
    if own is None:
        return _EXACT  # indices, flags
    others = [d for d in dtypes.values() if d in DEFAULT_TOLERANCE]
    if dtype == "fp64" and any(d != "fp64" for d in others):
        own = _wider(own, op.tolerance.get("fp32", DEFAULT_TOLERANCE["fp32"]))
    for other in through:
        own = _wider(own, op.tolerance.get(dtypes[other], _EXACT))
    if quantized_input:
        behind = [part.op for _, part in innermost(op.parts)][1:].count("gemm")
        own = _wider(own, (QUANTIZED_INPUT, QUANTIZED_BETWEEN, QUANTIZED_TWICE)[min(behind, 2)])
    if accumulation == "output":
        own = attrs.evolve(own, row_rms=max(own.row_rms, ROUNDED_SUMS.get(dtype, 0.0)))
    return own


def _wider(one: Tolerance, other: Tolerance) -> Tolerance:
    return Tolerance(*(max(pair) for pair in zip(attrs.astuple(one), attrs.astuple(other), strict=True)))


def mismatch(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: Tolerance) -> str | None:
    """None when ``got`` is right; else where it is not, by how much, and what was allowed."""
    import torch

    if tuple(got.shape) != tuple(want.shape):
        return f"{name} has shape {tuple(got.shape)}; it must be {tuple(want.shape)}"
    if not got.numel():
        return None
    g, w = got.to(torch.float64), want.to(torch.float64)
    difference = (g - w).abs()
    difference = torch.where((g == w) | (g.isnan() & w.isnan()), 0.0, difference)
    atol = tolerance.atol
    if tolerance.row_rms:
        atol += tolerance.row_rms * w.nan_to_num(0, 0, 0).square().mean(-1).max().sqrt().item()
    wrong = ~(difference <= atol + tolerance.rtol * w.abs())
    if bool(wrong.any()):
        index = tuple(int(i) for i in wrong.nonzero()[int(difference[wrong].nan_to_num(nan=torch.inf).argmax())])
        return (
            f"{name}{list(index)} is {g[index].item():.7g}, the reference says {w[index].item():.7g} "
            f"({int(wrong.sum())} of {got.numel()} elements are outside rtol={tolerance.rtol:g}, "
            f"atol={atol:g})"
        )
    norm, size = difference.norm().item(), w.norm().item()
    if norm > tolerance.relative_norm * size + tolerance.atol:
        return (
            f"{name} is off by {norm / size if size else norm:.3g} in the relative Frobenius norm; "
            f"{tolerance.relative_norm:g} is allowed"
        )
    return None
