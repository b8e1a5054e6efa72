"""The library's own configuration, heuristics and code generation for a GPU that is not here.

Everything up to the compiler runs as it would on that GPU; nothing is compiled, registered or launched.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

#: sm_count, L2 bytes, largest shared memory of a block, memory GB/s, clock MHz, fp16 operations per SM and clock.
_GPUS: Mapping[int, tuple[str, int, int, int, float, int, int]] = {
    75: ("Tesla T4", 40, 4 << 20, 64 << 10, 320, 1590, 1024),
    80: ("NVIDIA A100-SXM4-80GB", 108, 40 << 20, 163 << 10, 2039, 1410, 2048),
    86: ("NVIDIA RTX A6000", 84, 6 << 20, 99 << 10, 768, 1800, 1024),
    87: ("Orin", 16, 4 << 20, 163 << 10, 204, 1300, 2048),
    89: ("NVIDIA GeForce RTX 4090", 128, 72 << 20, 99 << 10, 1008, 2520, 1024),
    90: ("NVIDIA H200", 132, 60 << 20, 227 << 10, 4917, 1980, 4096),
    100: ("NVIDIA B200", 148, 126 << 20, 227 << 10, 8000, 1965, 8192),
    103: ("NVIDIA B300", 148, 126 << 20, 227 << 10, 8000, 1965, 8192),
    110: ("NVIDIA Thor", 20, 32 << 20, 227 << 10, 273, 1575, 8192),
    120: ("NVIDIA GeForce RTX 5090", 170, 96 << 20, 99 << 10, 1792, 2407, 1024),
    121: ("NVIDIA GB10", 48, 24 << 20, 99 << 10, 273, 2418, 1024),
}
_RATES = {
    "float16": (1, 75), "bfloat16": (1, 80), "float8e3m4": (2, 100), "float8e4m3": (2, 89), "float8e5m2": (2, 89),
    "float6e2m3": (2, 100), "float6e3m2": (2, 100), "float4e0m3": (4, 100), "float4e2m1": (4, 100), "int8": (2, 75),
    "int4": (4, 75),
}  # fmt: skip


def device_info(sm: int) -> Any:
    """What the library asks its extension for, for a GPU of that architecture."""
    name, sms, l2, smem, bandwidth, mhz, rate = _GPUS[sm]
    tops = sms * rate * mhz / 1e6
    halved = sm in (75, 86, 89)
    rates = {
        dtype: tops * factor / (2 if halved and "float" in dtype else 1)
        for dtype, (factor, least) in _RATES.items()
        if sm >= least
    }
    return types.SimpleNamespace(
        index=0, name=name, is_ppu=False, sm_count=sms, max_threads_per_block=1024, max_threads_per_sm=2048,
        max_registers_per_sm=65536, sm_major=sm // 10, sm_minor=sm % 10, sm_version=sm, l2_cache_size=l2,
        l2_cache_size_mb=l2 / 2**20, l1_cache_size=256 << 10, l1_cache_size_kb=256.0, default_smem_size=48 << 10,
        max_smem_size=smem, max_smem_size_kb=smem / 1024, memory_clock_khz=1, memory_bus_width=1,
        sm_clock_khz=mhz * 1000, memory_bandwidth_gbps=bandwidth, tensorcore_tops=rates,
    )  # fmt: skip


@contextlib.contextmanager
def simulated(sm: int) -> Iterator[None]:
    """Inside, the library believes in one GPU of architecture ``sm`` and nvrtc 13.0."""
    import humming.config.config as config
    import humming.device as device
    import torch
    from humming.jit.runtime import KernelRuntime
    from humming.kernel.humming import HummingKernel
    from humming.tune import _get_heuristics_config

    info = device_info(sm)
    extension = types.SimpleNamespace(_DeviceInfo=lambda _index: info)
    compiler = type("Nvrtc", (), {"signature": classmethod(lambda _cls: "nvrtc+13.0")})
    ids = itertools.count(1)

    def register(kernel: Any) -> None:
        kernel.kernel_id, kernel.kernel_name = next(ids), "humming"

    def one_by_one(specs: Any, device: Any = None) -> list[Any]:
        return [kind(**arguments) for kind, arguments in specs]

    HummingKernel._str2kernel_cache.clear()
    KernelRuntime._instances.clear()
    device.DeviceInfo._instances.clear()
    device.current_device._value = None
    _get_heuristics_config.cache_clear()
    config._cuda_compiler_version.cache_clear()
    with (
        mock.patch.object(device, "_get_device_info_extension", return_value=extension),
        mock.patch.object(torch.cuda, "device", return_value=contextlib.nullcontext()),
        mock.patch.object(torch.cuda, "current_device", return_value=0),
        mock.patch.object(HummingKernel, "prepare", return_value=None),
        mock.patch.object(HummingKernel, "register_kernel", register),
        mock.patch.object(KernelRuntime, "_get_compiler", staticmethod(lambda: compiler)),
        mock.patch.object(KernelRuntime, "compile_many", staticmethod(one_by_one)),
    ):
        try:
            yield
        finally:
            device.DeviceInfo._instances.clear()
            device.current_device._value = None
