"""How fast weights are quantized while they are loaded, as a share of memory bandwidth, and what memory that takes.

    python benchmarks/quantize_throughput.py --out benchmarks/results/quantize_throughput.json
    python benchmarks/quantize_throughput.py --device cuda --out benchmarks/results/quantize_throughput_h200.json

A checkpoint of bf16 matrices is written to a temporary folder and quantized from there by the same code that loads
models (some rows at a time). Bytes moved are those read in bf16 and those written as codes and scales; the bandwidth
is that of a copy in the same run on the same device, read and written bytes counted. ``peak`` is the largest memory
beyond that at the start (CPU: resident set; GPU: the allocator's own), beside the quantized model plus the largest
layer in bf16, which it must not exceed. A resident set that the process keeps from an earlier run hides some of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import time
from pathlib import Path

import torch
from phyai.quant import plan_from_policy
from phyai_models.weights import Checkpoint, WeightSource
from safetensors.torch import save_file

SCHEMES = {
    "int8": {"weight": {"dtype": "int8", "scale_dtype": "bf16"}},
    "int4_g128": {"weight": {"dtype": "int4", "group_size": 128, "scale_dtype": "bf16"}},
    "fp8": {"weight": {"dtype": "fp8_e4m3"}},
    "fp8_tensor": {"weight": {"dtype": "fp8_e4m3", "granularity": "tensor"}},
    "mxfp4": {"weight": "mxfp4"},
    "mxfp8": {"weight": "mxfp8"},
    "nvfp4": {"weight": "nvfp4"},
}


def memory(field: str) -> int:
    """Bytes of this process's resident set: now (``VmRSS``) or at its peak (``VmHWM``)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


class Peak:
    """The largest memory beyond that at the start, within a ``with``."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0

    def __enter__(self) -> Peak:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self.start = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
            self.start = memory("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else memory("VmHWM")
        self.bytes = peak - self.start


def bandwidth(device: torch.device) -> float:
    """Bytes a second that a copy reads and writes: the best of some."""
    nbytes = 1 << 28
    one = torch.ones(nbytes // 4, device=device)
    other = torch.empty_like(one)
    best = 0.0
    for _ in range(7):
        sync(device)
        start = time.perf_counter()
        other.copy_(one)
        sync(device)
        best = max(best, 2 * nbytes / (time.perf_counter() - start))
    return best


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(folder: Path, names: list[str], scheme: dict, method: str, device: torch.device) -> dict:
    wanted = plan_from_policy({"method": method, "default": scheme}).default
    source = WeightSource(Checkpoint.open(folder))
    shapes = {name: source.checkpoint.tensors[name].shape for name in names}
    kept = []
    with Peak(device) as peak:
        sync(device)
        start = time.perf_counter()
        kept += [source.quantize(name, shapes[name], wanted, method, device) for name in names]
        sync(device)
        seconds = time.perf_counter() - start
    read = sum(2 * n * k for n, k in shapes.values())
    written = sum(weight.nbytes() for weight in kept)
    return {
        "seconds": seconds, "bytes_read": read, "bytes_written": written,
        "bytes_per_second": (read + written) / seconds,
        "peak_bytes": peak.bytes, "allowed_bytes": written + max(2 * n * k for n, k in shapes.values()),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("--schemes", nargs="*", default=list(SCHEMES))
    parser.add_argument("--methods", nargs="*", default=["rtn", "rtn_mse"])
    parser.add_argument("--out")
    args = parser.parse_args()
    device = torch.device(args.device)
    speed = bandwidth(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    record: dict = {
        "device": name, "threads": torch.get_num_threads(), "torch": torch.__version__, "layers": args.layers,
        "shape": [args.n, args.k], "copy_bytes_per_second": speed, "runs": {},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as where:
        generator = torch.Generator().manual_seed(0)
        state = {
            f"l{i}.weight": (torch.randn(args.n, args.k, generator=generator) * 0.02).bfloat16()
            for i in range(args.layers)
        }
        save_file(state, Path(where) / "model.safetensors")
        names = list(state)
        del state
        measure(Path(where), names[:1], SCHEMES["int8"], "rtn", device)  # what is loaded once
        for method in args.methods:
            for scheme in args.schemes:
                found = measure(Path(where), names, SCHEMES[scheme], method, device)
                found["share_of_bandwidth"] = found["bytes_per_second"] / speed
                record["runs"][f"{scheme}.{method}"] = found
                print(
                    f"{scheme:10} {method:8} {found['bytes_per_second'] / 1e9:7.2f} GB/s "
                    f"{found['share_of_bandwidth']:6.1%} of {speed / 1e9:.1f} GB/s; "
                    f"peak {found['peak_bytes'] / 1e6:7.1f} MB of {found['allowed_bytes'] / 1e6:.1f} allowed"
                )
    if args.out:
        Path(args.out).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
