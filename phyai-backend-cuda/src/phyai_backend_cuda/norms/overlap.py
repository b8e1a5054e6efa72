"""``cuda.rms_norm.overlap`` and its kin: ``csrc/norm.cu`` at call sites, in launches that overlap.

A norm between two products of few rows ends the wait of neither's weights: it begins while the one in front still
runs, and lets the one behind begin and ask for its weights before it has ended itself.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

import torch
from phyai.facts import Facts, number, whole
from phyai.kernel import Prepared, Resources

from phyai_backend_cuda.norms.calls import run_of
from phyai_backend_cuda.runtime.early import settling
from phyai_backend_cuda.runtime.launch import Kernel, current_stream, load
from phyai_backend_cuda.runtime.memory import aligned, output, placed, readable, rows_of, settle


class Params(ctypes.Structure):
    """``Params`` of the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "modulation", "residual", "y", "gate")),
        *((f"{name}_row", ctypes.c_longlong) for name in ("x", "residual", "y", "modulation", "gate")),
        ("rows", ctypes.c_int), ("eps", ctypes.c_float), ("offset", ctypes.c_float),
    )  # fmt: skip


def kernel_of(
    facts: Facts, params: Mapping[str, Any] | None = None, *, add: bool = False, adaptive: bool = False
) -> Kernel:
    late = (params or {}).get("release") == "late"
    defines = {"DIM": whole(facts, "shape.D"), "ADD": int(add), "ADAPTIVE": int(adaptive), "LATE": int(late)}
    half = {"HALF": 1} if facts["dtype.x"] == "fp16" else {}
    return load("norm.cu", "rms_norm", {**defines, **half}, arch="sm_90a")


def launch(
    kernel: Kernel, x: torch.Tensor, y: torch.Tensor, *, eps: float, offset: float = 0.0,
    weight: torch.Tensor | None = None, residual: torch.Tensor | None = None, modulation: torch.Tensor | None = None,
    gate: torch.Tensor | None = None, overlap: bool = True,
) -> None:  # fmt: skip
    """One block for each row of ``x [M, D]``; every row begins at a multiple of 16 bytes and has no gaps.

    ``weight`` is read before the kernel in front has ended.
    """
    tensors = (x, weight, modulation, residual, y, gate)
    rows = (x, residual, y, modulation, gate)
    arguments = Params(
        *(None if t is None else t.data_ptr() for t in tensors), *(0 if t is None else t.stride(0) for t in rows),
        1 if modulation is None else len(x) // len(modulation), eps, offset,
    )  # fmt: skip
    threads = -(-x.shape[1] // 8 // 32) * 32
    kernel.launch((len(x),), threads, (arguments,), current_stream(), overlap=overlap)


def prepare_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources, *, add: bool = False
) -> Prepared:
    kernel = kernel_of(facts, params, add=add)
    eps, offset = number(facts, "attrs.eps", 1e-6), number(facts, "attrs.offset", 0)
    weight = weights.get("weight")
    if weight is not None:
        weight = aligned(weight)

    def norm(x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor | None) -> torch.Tensor:
        y = output(x, out)
        if y.numel():
            place = placed(y, 8)
            added = None if residual is None else readable(rows_of(residual))
            launch(kernel, readable(rows_of(x)), place, eps=eps, offset=offset, weight=weight, residual=added)
            settle(y, place)
            if residual is not None and added is not None:
                settle(residual, added)
        return y

    def refresh(new: Mapping[str, Any]) -> None:
        if weight is not None:
            weight.copy_(new["weight"])

    return settling(run_of(norm, add=add), refresh)


prepare_rms_norm_add = functools.partial(prepare_rms_norm, add=True)


def prepare_ada_rms_norm(
    facts: Facts, weights: Mapping[str, Any], params: Mapping[str, Any], resources: Resources
) -> Prepared:
    kernel, eps = kernel_of(facts, params, adaptive=True), number(facts, "attrs.eps", 1e-6)

    def run(
        x: torch.Tensor, modulation: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None = None,
        state: object = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        dim = x.shape[-1]
        y = output(x, None if out is None else out[0])
        gate = output(x, None if out is None else out[1], *modulation.shape[:-1], dim)
        if y.numel():
            place, gates = placed(y, 8), placed(gate, 8)
            rows, conditions = readable(rows_of(x)), readable(rows_of(modulation))
            launch(kernel, rows, place, eps=eps, modulation=conditions, gate=gates)
            settle(y, place)
            settle(gate, gates)
        else:  # conditions without rows have gates all the same
            gate.copy_(modulation[..., 2 * dim :])
        return y, gate

    return Prepared(run)
