"""How much faster the kernel is than torch's, at the shapes of real models.

    python -m phyai_backend_example.bench [--threads 1] [--rounds 15] [--largest ELEMENTS] [--json]

Both run through call sites of one dispatcher each, in turns, into outputs of their own; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher, Site
from phyai.environment import Environment
from phyai.op import ArgSpec
from phyai.plugins import discover
from phyai.policy import parse_policy
from phyai.synthesize import SynthesizedCall, synthesize

DTYPES = ("bf16", "fp32")
POLICY = "schema: phyai.kernel/v1\nrules: [{id: one, match: {op: gated_activation}, restrict_to: ['BACKEND.*']}]"


def site(backend: str, call: SynthesizedCall, catalog: Catalog) -> Site:
    """A call site at which only kernels of one backend are allowed."""
    policy = parse_policy(POLICY.replace("BACKEND", backend).encode(), file="bench", catalog=catalog).policy
    dispatcher = Dispatcher(catalog, policy, Environment.detect("cpu", libraries=catalog.libraries))
    return dispatcher.bind("gated_activation", attrs=call.attrs, dtypes=call.dtypes, dims={"I": call.spec.dims["I"]})


def measure(spec: ArgSpec, dtype: str, rounds: int, catalog: Catalog) -> dict[str, Any]:
    """Medians of both kernels in milliseconds, without ``out`` as a model calls them, in turns."""
    call = synthesize(catalog.op("gated_activation"), spec, dtype=dtype)
    sites = {name: site(name, call, catalog) for name in ("torch", "example")}
    times: dict[str, list[float]] = {name: [] for name in sites}
    for number in range(rounds + 2):
        for name, bound in sites.items():
            begun = time.perf_counter()
            bound.run(call.inputs["x"])
            if number >= 2:  # the first two decide and warm up
                times[name].append(time.perf_counter() - begun)
    ours, theirs = (statistics.median(times[name]) * 1e3 for name in ("example", "torch"))
    return {
        "call": spec.name, "M": spec.dims["M"], "I": spec.dims["I"], "activation": call.attrs["activation"],
        "dtype": dtype, "torch_ms": theirs, "example_ms": ours, "times_faster": theirs / ours,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--largest", type=int, default=1 << 26, help="calls of at most so many elements")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    catalog = discover()
    specs = [s for s in catalog.op("gated_activation").arg_specs if s.dims["I"] > 1024]
    specs = [s for s in specs if 2 * s.dims["M"] * s.dims["I"] <= args.largest]
    rows = [measure(spec, dtype, args.rounds, catalog) for spec in specs for dtype in DTYPES]
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    print("| call | M | I | activation | dtype | torch ms | example ms | times faster |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        cells = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
