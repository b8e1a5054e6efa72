"""The measuring process of ``humming_gemm.py``: it says what it does, one line of JSON at a time."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from humming_plan import BASELINES, Unit
from humming_rows import LAYERS, SCHEMES, catalog, copies, facts_of, side_by_side, weight_of
from phyai.dispatch.resources import EngineResources
from phyai.environment import Environment
from phyai.kernel import Prepared
from phyai.quant.realize.dequantize import dequantize
from phyai.quant.weight import QuantizedWeight
from phyai_backend_humming import rows as humming_rows_of
from phyai_backend_humming.convert import arranged_bias, at_real_size, take
from phyai_backend_humming.gemm import quantizer, static_scales
from phyai_backend_humming.layout import pack
from phyai_backend_humming.library import library
from phyai_backend_humming.schedules import compile_schedules

#: Calls in a graph, at least; and outputs that they take turns with.
CALLS, OUTPUTS = 16, 4
DTYPE = torch.bfloat16


class Compiling:
    """Kernels compiled side by side in the order of the units that need them."""

    def __init__(self, wanted: Sequence[Unit]) -> None:
        kind = library().HummingKernel
        self.pool = ThreadPoolExecutor(library().workers())
        self.jobs: dict[str, Future[Any]] = {}
        self.of: dict[str, list[Future[Any]]] = {}
        for unit in wanted:
            jobs = self.of[unit.name] = []
            for key, spec in unit.specifications().items():
                if key not in self.jobs:
                    self.jobs[key] = self.pool.submit(kind.compile_many, [(kind, spec)], 0)
                jobs.append(self.jobs[key])

    def ready(self, unit: Unit, tell: Callable[..., None], deadline: float) -> bool:
        """Wait for what a unit needs; False when time is up before.

        Raises:
            Exception: what the compiler raised.
        """
        jobs = self.of[unit.name]
        while (waiting := wait(jobs, timeout=5.0).not_done) and time.time() < deadline:
            tell(waiting=len(waiting))
        if waiting:
            return False
        for job in jobs:
            job.result()
        return True

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    @property
    def done(self) -> int:
        return sum(job.done() for job in self.jobs.values())


@torch.no_grad()
def work(wanted: Sequence[Unit], events: Path, deadline: float) -> int:
    """Measure ``wanted``, except for what ``events`` says was begun before; 3 when the device is of no use any more."""
    before = {json.loads(line).get("begin") for line in events.read_text().splitlines()} if events.exists() else set()
    left = [unit for unit in wanted if unit.name not in before]
    environment = Environment.detect("cuda", libraries=catalog().libraries)
    with events.open("a", buffering=1) as file:

        def tell(**event: Any) -> None:
            file.write(json.dumps(event) + "\n")

        cache = torch.cuda.get_device_properties(0).L2_cache_size
        tell(about={"device": torch.cuda.get_device_name(), "torch": torch.__version__, "l2_bytes": cache,
                    "libraries": dict(environment.libraries), "workers": library().workers()})  # fmt: skip
        begun = time.time()
        compiling = Compiling(left)
        try:
            for unit in left:
                if time.time() > deadline - 5:
                    break
                try:
                    if not compiling.ready(unit, tell, deadline - 5):
                        break
                except Exception as problem:  # a kernel that does not compile: the others are still worth measuring
                    tell(begin=unit.name)
                    tell(result=_failed(unit, None, problem))
                    tell(end=unit.name)
                    continue
                tell(begin=unit.name)
                if not _measured(unit, environment, tell, deadline):
                    return 3
                tell(end=unit.name)
                tell(about={"kernels": len(compiling.jobs), "compiled": compiling.done,
                            "seconds": round(time.time() - begun, 1)})  # fmt: skip
        finally:
            compiling.close()
    return 0


def _measured(unit: Unit, environment: Environment, tell: Callable[..., None], deadline: float) -> bool:
    """Measure a unit and tell its results; whether the device can be used on."""
    try:
        cells = baselines(unit) if unit.scheme == BASELINES else rows(unit, environment)
        for result in cells:
            tell(result=result)
            if time.time() > deadline + 5:
                break
    except Exception as problem:
        tell(result=_failed(unit, None, problem))
        return "CUDA error" not in str(problem) and not isinstance(problem, torch.AcceleratorError)
    finally:
        torch.cuda.empty_cache()
    return True


def _failed(unit: Unit, m: int | None, problem: BaseException) -> dict[str, Any]:
    said = f"{type(problem).__name__}: {problem}".splitlines()[0][:400]
    return {"layer": unit.layer, "M": m, "rows": list(unit.rows), "scheme": unit.scheme, "problem": said}


def _about(unit: Unit, scheme: str, m: int, count: int, nbytes: int) -> dict[str, Any]:
    n, k, bias = LAYERS[unit.layer]
    return {"layer": unit.layer, "N": n, "K": k, "bias": bias, "M": m, "scheme": scheme, "unit": unit.scheme,
            "weights_mb": round(count * nbytes / 2**20, 1)}  # fmt: skip


def _calls(made: Sequence[Callable[..., Any]], m: int, n: int) -> list[Callable[[], Any]]:
    """At least ``CALLS`` calls, each of the next of ``made`` into the next output."""
    outs = [torch.empty(m, n, device="cuda", dtype=DTYPE) for _ in range(min(OUTPUTS, len(made)))]
    total = len(made) * math.ceil(CALLS / len(made))
    return [partial(made[i % len(made)], outs[i % len(outs)]) for i in range(total)]


def baselines(unit: Unit) -> Iterator[dict[str, Any]]:
    """cuBLAS in bf16, and torch's scaled product of fp8 codes with a scale for every row and channel."""
    n, k, biased = LAYERS[unit.layer]
    bias = torch.randn(n, device="cuda").to(DTYPE) if biased else None
    for name, size, make in (("cuBLAS bf16", 2, _cublas), ("torch._scaled_mm fp8", 1, _scaled)):
        if name != "cuBLAS bf16" and (n % 16 or k % 16):
            continue
        count = copies(n * k * size)
        weights = [torch.randn(n, k, device="cuda") for _ in range(2)]
        held = [make(weights[i % 2], bias) for i in range(count)]
        del weights
        for m in unit.rows:
            try:
                x = torch.randn(m, k, device="cuda")
                calls = _calls([one(x) for one in held], m, n)
                us = side_by_side({"us": calls})
            except torch.AcceleratorError:
                raise
            except Exception as problem:
                yield _failed(unit, m, problem) | {"scheme": name}
                continue
            yield _about(unit, name, m, count, n * k * size) | us


def _cublas(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], Callable[..., Any]]:
    w = weight.to(DTYPE, copy=True).T

    def on(x: torch.Tensor) -> Callable[[torch.Tensor], Any]:
        given = x.to(DTYPE)
        return lambda y: torch.mm(given, w, out=y) if bias is None else torch.addmm(bias, given, w, out=y)

    return on


def _scaled(weight: torch.Tensor, bias: torch.Tensor | None) -> Callable[[torch.Tensor], Callable[..., Any]]:
    w = weight.to(torch.float8_e4m3fn).T
    scale = torch.ones(1, w.shape[1], device="cuda")

    def on(x: torch.Tensor) -> Callable[[torch.Tensor], Any]:
        codes, ones = x.to(torch.float8_e4m3fn), torch.ones(len(x), 1, device="cuda")
        return lambda y: torch._scaled_mm(codes, w, ones, scale, bias=bias, out_dtype=DTYPE)

    return on


@attrs.frozen(eq=False)
class Held:
    """One copy of a weight, arranged for the GPU, and what the row made of it."""

    weight: QuantizedWeight
    prepared: Prepared


def rows(unit: Unit, environment: Environment) -> Iterator[dict[str, Any]]:
    """A row at one layer: ours and the library's launch, in turns, and how far it is from float32."""
    name, scheme = SCHEMES[unit.scheme]
    n, k, biased = LAYERS[unit.layer]
    kernel = next(one for one in humming_rows_of.KERNELS if one.id == f"humming.gemm.{name}")
    facts = facts_of(environment, scheme, n, k, None, biased)
    reason = kernel.when.why_not(facts)
    if reason is not None:
        raise ValueError(f"{kernel.id} refuses {scheme.name} [{n}, {k}]: {reason}")
    plain, bias = weight_of(scheme, n, k, bias=biased)
    dense = dequantize(plain)
    quantize = quantizer(scheme.input, plain.shape[1], static_scales(plain))
    nbytes = n * k * scheme.weight.bits // 8
    resources = EngineResources(environment.device)
    biases = {} if bias is None else {"bias": bias}
    held: list[Held] = []
    for _ in range(copies(nbytes)):
        weight = pack(plain) if not held else _copied(held[0].weight)
        prepared = kernel.load()(facts, {"weight": weight, **biases}, {"rows": list(unit.rows)}, resources)
        held.append(Held(weight, prepared))
    configs = _configs(held[0].weight, n, k, bias, unit.rows)
    launch = [_launcher(one.weight, bias) for one in held]
    for m, config in zip(unit.rows, configs, strict=True):
        try:
            x = torch.randn(m, k, device="cuda").to(DTYPE)
            sides = {"us": _calls([partial(_ours, one.prepared, x) for one in held], m, n)}
            if quantize is None:
                sides["library_us"] = _calls([partial(f, config, x, None) for f in launch], m, n)
            else:
                sides["library_us"] = _calls([partial(_quantized, f, config, quantize, x) for f in launch], m, n)
                given = quantize(x)  # once: a copy for every call would drive all weights out of L2
                sides["library_gemm_us"] = _calls([partial(f, config, *given) for f in launch], m, n)
            result = _about(unit, unit.scheme, m, len(held), nbytes) | {"row": kernel.id} | side_by_side(sides)
            few = x[:64]
            want = few.float() @ dense.T + (0 if bias is None else bias.float())
            got = held[0].prepared.run(x)[:64].float()
            result["error"] = ((got - want).norm() / want.norm()).item()
        except torch.AcceleratorError:
            raise
        except Exception as problem:
            result = _failed(unit, m, problem)
        yield result


def _ours(prepared: Prepared, x: torch.Tensor, y: torch.Tensor) -> None:
    prepared.run(x, out=y)


def _quantized(launch: Any, config: torch.Tensor, quantize: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    launch(config, *quantize(x), y)


def _copied(weight: QuantizedWeight) -> QuantizedWeight:
    return attrs.evolve(weight, packed={name: tensor.clone() for name, tensor in weight.packed.items()})


def _configs(
    weight: QuantizedWeight, n: int, k: int, bias: torch.Tensor | None, numbers: Sequence[int]
) -> list[torch.Tensor]:
    """The library's compiled kernel for each of these numbers of rows."""
    config = at_real_size(take(weight, DTYPE).config, n, k, bias=bias is not None)
    return [compile_schedules(config, (m,), invariant=False, device=0).configs[0] for m in numbers]


def _launcher(weight: QuantizedWeight, bias: torch.Tensor | None) -> Callable[..., None]:
    """The library's own operator on one copy of a weight, with nothing around it."""
    final = take(weight, DTYPE)
    arranged = None if bias is None else arranged_bias(final, bias)
    locks = torch.zeros(2048, dtype=torch.int32, device="cuda")
    get, launch = final.tensors.get, torch.ops.humming.launch_kernel.out

    def run(config: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor | None, y: torch.Tensor) -> None:
        launch(
            config, codes, get("weight"), get("weight_scale"), get("weight_scale_2"), scales, None, get("zero_point"),
            arranged, y, None, None, None, None, locks, 1, 0, False,
        )  # fmt: skip

    return run
