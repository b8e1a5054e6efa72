"""Ask the NVIDIA driver which GPUs are here, without a tensor library.

Uses the CUDA driver API (``libcuda``), which honours ``CUDA_VISIBLE_DEVICES`` and numbers devices as torch does. No
context is created. A device that the catalogue knows gets its memory from there, as sold, so that a policy reads the
same number on the device and in an answer about it.
"""

from __future__ import annotations

import ctypes
import sys

from phyai.devices.catalogue import named
from phyai.environment import Device

# CUdevice_attribute in cuda.h
_MULTIPROCESSOR_COUNT = 16
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


def cuda_devices() -> tuple[Device, ...]:
    """The CUDA devices of this machine; empty when there is no driver or no device."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return ()
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    devices = (_device(cuda, index) for index in range(count.value))
    return tuple(device for device in devices if device is not None)


def _device(cuda: ctypes.CDLL, index: int) -> Device | None:
    handle, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    results = [
        cuda.cuDeviceGet(ctypes.byref(handle), index),
        cuda.cuDeviceGetName(name, len(name), handle),
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle),
    ]

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        results.append(cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle))
        return value.value

    arch = f"sm{attribute(_COMPUTE_CAPABILITY_MAJOR)}{attribute(_COMPUTE_CAPABILITY_MINOR)}"
    sm_count = attribute(_MULTIPROCESSOR_COUNT)
    if any(results):
        return None
    title = name.value.decode(errors="replace")
    spec = named(title)
    memory_gb = round(memory.value / 1e9, 1) if spec is None else spec.memory_gb
    return Device("cuda", "nvidia", arch, title, sm_count, memory_gb, index)
