"""What this device does at best, measured now: large matrix products in each type, and a large read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from phyai.errors import first_line

from phyai_models.bench.floor import Ceilings
from phyai_models.bench.timing import time_device
from phyai_models.pi.precision import DTYPES

_FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def measure_ceilings(device: torch.device, dtypes: Iterable[str]) -> Ceilings:
    """The rate of products in ``dtypes`` and of reading memory: the best of several, large and square.

    A type that this device does not multiply, or torch does not measure, has no rate but a reason.
    """
    gpu = device.type == "cuda"
    flops: dict[str, float] = {}
    unknown: dict[str, str] = {}
    for dtype in sorted(set(dtypes)):
        size = 8192 if gpu else 512
        product = _product(dtype, size, device)
        if isinstance(product, str):
            unknown[dtype] = product
            continue
        try:
            product()
        except RuntimeError as error:  # of torch or a library: this device, or this size, is not for it
            unknown[dtype] = first_line(error)
            continue
        timing = time_device(product, device, warmup=5 if gpu else 0, runs=10 if gpu else 3)
        flops[dtype] = 2 * size**3 / (timing.least / 1e3)
    count = 1 << 31 if gpu else 1 << 24
    block = torch.ones(count // 4, device=device, dtype=torch.float32)
    read = time_device(lambda: torch.sum(block), device, warmup=2, runs=5)
    return Ceilings(flops, bandwidth=count / (read.least / 1e3), unknown=unknown)


def _product(dtype: str, size: int, device: torch.device) -> Callable[[], torch.Tensor] | str:
    """A product ``[size, size] @ [size, size]`` in ``dtype``, or why there is none."""
    if dtype in DTYPES:
        x, y = (torch.randn(size, size, device=device, dtype=DTYPES[dtype]) for _ in range(2))
        return lambda: torch.mm(x, y)
    if dtype == "int8":
        x, y = (torch.randint(-127, 128, (size, size), device=device, dtype=torch.int8) for _ in range(2))
        return lambda: torch._int_mm(x, y.t())
    if dtype not in _FP8:
        return f"torch has no product of {dtype} to measure it by"
    if device.type != "cuda":
        return f"{device} does not multiply {dtype}; what computes in it there emulates it"
    one = torch.ones((), device=device)
    x = torch.randn(size, size, device=device).to(_FP8[dtype])
    y = torch.randn(size, size, device=device).to(torch.float8_e4m3fn)  # cuBLAS multiplies e5m2 by e4m3 only
    return lambda: torch._scaled_mm(x, y.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
