"""Load cubins and launch their kernels on torch's current stream, through the driver.

``cuLaunchKernelEx`` takes what framework launchers do not pass on: cooperative grids, and parameters by value of any
size.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
SHARED_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
WIDE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
COOPERATIVE, CLUSTER, OVERLAP = 2, 4, 6  # CUlaunchAttributeID; OVERLAP: programmatic stream serialization
PORTABLE_CLUSTER = 8  # blocks; a larger cluster does not fit on every chip


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint),
    )  # fmt: skip


@functools.cache
def driver() -> Any:
    """The driver's library."""
    return ctypes.CDLL("libcuda.so.1")


def check(code: int, what: str) -> None:
    """Raise RuntimeError with the driver's words where ``code`` is an error."""
    if code:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"{what} failed: {(text.value or b'unknown error').decode()} (CUDA error {code})")


class Kernel:
    """One function of a cubin, on the device that was current when it was loaded.

    Parameters are ctypes values (``c_void_p`` for pointers, ``Structure`` by value), kept alive by the caller only
    during the launch: the driver copies them. ``cluster`` blocks beside each other along x form a cluster. ``carveout``
    is the percentage of an SM's memory that the kernel prefers to be shared memory; the driver chooses without it.
    """

    def __init__(
        self, cubin: bytes, function: str, shared_bytes: int = 0, cluster: int = 1, carveout: int | None = None
    ) -> None:
        self.name, self.shared_bytes, self.cluster = function, shared_bytes, cluster
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        library = driver()
        check(library.cuModuleLoadData(ctypes.byref(self._module), cubin), "cuModuleLoadData")
        found = library.cuModuleGetFunction(ctypes.byref(self._function), self._module, function.encode())
        check(found, f"cuModuleGetFunction({function})")
        if shared_bytes > 48 * 1024:
            code = library.cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED, shared_bytes)
            check(code, f"{shared_bytes} bytes of shared memory for {function}")
        if carveout is not None:
            code = library.cuFuncSetAttribute(self._function, SHARED_CARVEOUT, carveout)
            check(code, f"{carveout} % of an SM's memory as shared memory for {function}")
        if cluster > PORTABLE_CLUSTER:
            code = library.cuFuncSetAttribute(self._function, WIDE_CLUSTERS, 1)
            check(code, f"clusters of {cluster} blocks for {function}")

    def launch(
        self, grid: Sequence[int], block: int, arguments: Sequence[Any], stream: int, *, cooperative: bool = False,
        overlap: bool = False,
    ) -> None:  # fmt: skip
        """Launch on the CUDA stream handle ``stream``.

        With ``overlap`` the kernel may begin before the one in front of it has ended, and waits by itself for what it
        needs of it (``griddepcontrol.wait``). Raises RuntimeError with the driver's words.
        """
        given = [(COOPERATIVE, (1,))] * cooperative + [(OVERLAP, (1,))] * overlap
        config = self._config(grid, block, stream, given)
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        code = driver().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None)
        check(code, f"launching {self.name}")

    def clusters(self, block: int) -> int:
        """How many clusters of blocks of ``block`` threads the device can run at the same time; 0 where none fits."""
        found = ctypes.c_int()
        config = self._config((self.cluster,), block, 0, [])
        code = driver().cuOccupancyMaxActiveClusters(ctypes.byref(found), self._function, ctypes.byref(config))
        check(code, f"asking for clusters of {self.cluster} blocks of {self.name}")
        return found.value

    def _config(
        self, grid: Sequence[int], block: int, stream: int, given: Sequence[tuple[int, tuple[int, ...]]]
    ) -> _Config:
        given = (*given, *[(CLUSTER, (self.cluster, 1, 1))] * (self.cluster > 1))
        attributes = (_Attribute * max(1, len(given)))(*(_Attribute(id, 0, value) for id, value in given))
        return _Config((*grid, 1, 1)[:3], (block, 1, 1), self.shared_bytes, stream, attributes, len(given))


@functools.cache  # without a limit: a kernel that was forgotten would be loaded anew, and stay on the device as well
def _load(
    name: str, function: str, defines: tuple[tuple[str, int], ...], arch: str, shared: int, cluster: int,
    carveout: int | None, _: int,
) -> Kernel:  # fmt: skip
    from phyai_backend_cuda.runtime.nvrtc import compile_cubin

    return Kernel(compile_cubin(name, dict(defines), arch), function, shared, cluster, carveout)


def load(
    name: str, function: str, defines: Mapping[str, int], *, arch: str, shared_bytes: int = 0, cluster: int = 1,
    carveout: int | None = None,
) -> Kernel:  # fmt: skip
    """``function`` of ``csrc/<name>``, compiled with ``defines`` for ``arch`` (``sm_90a``), on the current device."""
    import torch

    torch.cuda.current_stream()  # makes the primary context current
    device = torch.cuda.current_device()
    return _load(name, function, tuple(sorted(defines.items())), arch, shared_bytes, cluster, carveout, device)


def current_stream() -> int:
    """torch's current stream, as a handle."""
    import torch

    return int(torch.cuda.current_stream().cuda_stream)


def settled() -> None:
    """Wait until weights are written: a launch that overlaps reads them before the kernel in front has ended."""
    import torch

    torch.cuda.current_stream().synchronize()
