"""What dispatching costs, as ratios in one run on one machine, beside pluggy, plum and torch.library.

    python benchmarks/dispatch_overhead.py [--json FILE] [--rounds N]

Every case is one statement in timeit's loop, whose own cost is the first row. Rounds are interleaved, so that a slow
moment of the machine hits all cases alike. Trust the ratios of the minima.
Needs torch and plum-dispatch. The exit status is 1 when a ratio or a time is over what the design allows.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher
from phyai.environment import Device, Environment
from phyai.facts import Facts
from phyai.kernel import Band, Capture, Kernel, Numerics, Prepared
from phyai.ops import CORE_OPS
from phyai.policy import Defaults, Policy, parse_policy
from phyai.predicates import match
from phyai.resolver import resolve

LOOPS = 200  # statements per sample
KERNELS, RULES = 200, 1000
BACKENDS, ROLES = 8, ("vision", "prefix", "expert", "head")
CPU = Environment(Device("cpu"))


def nothing(x: Any, out: Any = None, state: Any = None) -> Any:
    """The prepared callable of every case: the least that a kernel can do."""
    return x


def make_kernel(id: str, when: Mapping[str, Any] | None = None, **more: Any) -> Kernel:
    return Kernel(
        id=id, op=id.split(".")[1], when=match(dict(when or {})),
        prepare=lambda facts, weights, params, resources: Prepared(run=nothing),
        capture=Capture.SAFE, numerics=Numerics(reproducible=True), **more,
    )  # fmt: skip


def sites() -> dict[str, Any]:
    """A frozen static site, a frozen one keyed by a bucket of M, and an open one; gemm at M=50."""
    kernels = (make_kernel("a.gemm"), make_kernel("b.gemm", {"shape.M": "<=64"}, band=Band.OPTIMIZED))
    weight = torch.zeros(32, 64, dtype=torch.bfloat16)
    bound: dict[str, Any] = {"weights": {"weight": weight}, "dtypes": {"x": torch.bfloat16}}
    found: dict[str, Any] = {}
    for name, of in (("frozen", kernels[:1]), ("bucketed", kernels), ("memoized", kernels)):
        dispatcher = Dispatcher(Catalog(ops=CORE_OPS, kernels=of), Policy(), CPU)
        found[name] = site = dispatcher.bind("gemm", layer=name, **bound)
        for m in (50, 100):
            site.run(torch.zeros(m, 64, dtype=torch.bfloat16))
        if name != "memoized":
            dispatcher.freeze()
    assert found["frozen"].run is nothing
    assert found["bucketed"].dynamic
    return found


def competitors() -> dict[str, tuple[str, dict[str, Any]]]:
    """Statement and names for each: one implementation behind each dispatcher, called with one tensor."""
    import pluggy
    from plum import Dispatcher as Plum

    spec, impl = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")

    class Spec:
        @spec(firstresult=True)
        def compute(self, x: Any) -> Any: ...

    class Plugin:
        @impl
        def compute(self, x: Any) -> Any:
            return x

    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Spec)
    manager.register(Plugin())

    plum = Plum()

    @plum
    def overloaded(x: torch.Tensor) -> Any:
        return x

    library = torch.library.Library("phyai_bench", "FRAGMENT")
    library.define("neg(Tensor x) -> Tensor")
    library.impl("neg", lambda x: torch.neg(x), "CPU")
    return {
        "pluggy, one plug-in": ("hook(x=x)", {"hook": manager.hook.compute}),
        "plum, one method": ("call(x)", {"call": overloaded}),
        "torch.library, torch.neg": ("op(one)", {"op": torch.ops.phyai_bench.neg, "keep": library}),
    }


def calls(rounds: int) -> dict[str, list[float]]:
    """Nanoseconds per call of every case, a sample per round."""
    names = {"x": torch.zeros(50, 64, dtype=torch.bfloat16), "one": torch.zeros(1), "run": nothing, "neg": torch.neg}
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "empty loop": ("pass", {}),
        "plain call": ("run(x)", {}),
        "torch.neg, 1 element": ("neg(one)", {}),
        **{f"site, {name}": ("site.run(x)", {"site": site}) for name, site in sites().items()},
        **competitors(),
    }
    timers = {name: timeit.Timer(code, globals={**names, **own}) for name, (code, own) in cases.items()}
    samples: dict[str, list[float]] = {name: [] for name in cases}
    for round in range(rounds + 1):
        for name, timer in timers.items():
            took = timer.timeit(LOOPS) / LOOPS * 1e9
            if round:  # the first one warms up
                samples[name].append(took)
    return samples


def rules_text() -> str:
    """A policy of 1,000 rules: each for one role, family and range of M, none in conflict with another."""
    lines = ["schema: phyai.kernel/v1", "rules:"]
    for n in range(RULES):
        role, family, low = ROLES[n % 4], f"model{n // 4 % 25}", n // 100 * 100
        op = ("gemm", "rms_norm", "attention")[n % 3]
        dim = {"gemm": "shape.M", "rms_norm": "shape.M", "attention": "shape.Sq"}[op]
        condition = f'op: {op}, role: {role}, model.family: {family}, {dim}: "{low}..{low + 99}"'
        lines.append(f'  - {{id: r{n}, match: {{{condition}}}, prefer: ["b{n % BACKENDS}.{op}.*"]}}')
    return "\n".join(lines)


def big_catalog() -> Catalog:
    """200 kernels, all of one op: eight backends with 25 variants each."""

    def variant(n: int) -> Kernel:
        when = {"dtype.x": ["bf16", "fp16"], "shape.K": f"%{8 << (n % 5)}", "shape.M": f">={n}"}
        return make_kernel(f"b{n % BACKENDS}.gemm.v{n}", when, rank=n, band=Band.OPTIMIZED)

    return Catalog(ops=CORE_OPS, kernels=tuple(variant(n) for n in range(KERNELS)))


def timed(function: Callable[[], Any], rounds: int) -> list[float]:
    """Seconds of CPU per call."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return taken


def slow_paths(rounds: int) -> dict[str, list[float]]:
    """Seconds: importing, loading a large policy, resolving one call under it."""
    catalog, text = big_catalog(), rules_text()
    base = Policy()
    policy = parse_policy(text, catalog=catalog, base=base).policy
    policy = policy.over(Policy(defaults=Defaults(ties=tuple(f"b{n}" for n in range(BACKENDS)))))
    named = {"role": "expert", "model.family": "model3", "device.type": "cpu"}
    sized = {"shape.M": 150, "shape.N": 4096, "shape.K": 1024}
    typed = dict.fromkeys(("dtype.x", "dtype.weight", "dtype.y"), "bf16")
    call = Facts({"op": "gemm", **named, **sized, **typed})
    decision = resolve(call, catalog, policy, CPU)
    assert len(decision.candidates) == KERNELS
    assert decision.matched
    bare, full = "pass", "import phyai; phyai.Dispatcher; phyai.resolve; import sys; assert 'torch' not in sys.modules"
    start = {code: min(_subprocess(code) for _ in range(5)) for code in (bare, full, "import phyai")}
    return {
        "import phyai": [start["import phyai"] - start[bare]],
        "import phyai, its dispatcher and resolver": [start[full] - start[bare]],
        f"load {RULES} rules and check conflicts": timed(lambda: parse_policy(text, catalog=catalog, base=base), 5),
        f"resolve, {KERNELS} kernels of the op, {RULES} rules": timed(
            lambda: resolve(call, catalog, policy, CPU), rounds
        ),
    }


def _subprocess(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--rounds", type=int, default=1500)
    args = parser.parse_args()
    torch.set_num_threads(1)

    from rich.console import Console
    from rich.table import Table

    samples = calls(args.rounds)
    plain, neg = min(samples["plain call"]), min(samples["torch.neg, 1 element"])
    best = {name: min(taken) for name, taken in samples.items()}
    table = Table("case", "min ns", "median ns", "× plain call", "× torch.neg", title="one call", title_justify="left")
    for name, taken in samples.items():
        cells = (best[name], statistics.median(taken), best[name] / plain, best[name] / neg)
        table.add_row(name, f"{cells[0]:.0f}", f"{cells[1]:.0f}", f"{cells[2]:.2f}", f"{cells[3]:.3f}")
    paths = slow_paths(args.rounds)
    slow = Table("path", "min ms", "median ms", title="off the hot path", title_justify="left")
    for name, taken in paths.items():
        slow.add_row(name, f"{min(taken) * 1e3:.2f}", f"{statistics.median(taken) * 1e3:.2f}")

    seconds = [min(taken) for taken in paths.values()]
    limits = {
        "frozen / plain call": (best["site, frozen"] / plain, 1.5),
        "bucketed / torch.neg": (best["site, bucketed"] / neg, 0.25),
        "memoized / torch.neg": (best["site, memoized"] / neg, 0.5),
        "import phyai, s": (seconds[0], 0.2),
        f"load {RULES} rules, s": (seconds[2], 2.0),
        "resolve, s": (seconds[3], 1e-3),
    }
    allowed = Table("figure", "measured", "allowed", "", title="against the design", title_justify="left")
    for name, (measured, limit) in limits.items():
        allowed.add_row(name, f"{measured:.4g}", f"{limit:g}", "ok" if measured <= limit else "OVER")
    console = Console(width=120)
    for shown in (table, slow, allowed):
        console.print(shown)
    if args.json:
        machine = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
        figures = {
            "machine": machine,
            "rounds": args.rounds,
            "loops": LOOPS,
            "ns_per_call": {n: {"min": min(t), "median": statistics.median(t)} for n, t in samples.items()},
            "seconds": {n: {"min": min(t), "median": statistics.median(t)} for n, t in paths.items()},
            "limits": {n: {"measured": m, "allowed": limit, "ok": m <= limit} for n, (m, limit) in limits.items()},
        }
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0 if all(measured <= limit for measured, limit in limits.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
