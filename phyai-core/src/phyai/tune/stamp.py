"""What a measurement depends on beside the call: the machine, the driver, the libraries, and the kernels' own code.

Nothing here imports a tensor library or a kernel: versions come from the metadata of installed distributions, code from
the files of the package that the kernel names.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from phyai.catalog import Catalog
from phyai.composite import is_decomposition
from phyai.environment import Environment
from phyai.kernel import Kernel

#: Files that hold code.
_CODE = frozenset({".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".c", ".ptx", ".cubin", ".so", ".pyd"})
#: Said in messages about a mismatch; the others are named as they are.
_WORDS = {"cpus": "number of CPUs", "cuda": "CUDA version of the driver", "driver": "driver version"}


def stamp_of(environment: Environment, kernels: Iterable[Kernel] = ()) -> dict[str, str]:
    """The machine's part, with the libraries that ``kernels`` ask for.

    What is not known of a machine that is not here is left out, and then never compared.
    """
    device = environment.device
    asked = {"lib.torch"} | {name for kernel in kernels for name in kernel.when.facts if name.startswith("lib.")}
    libraries = {f"lib.{name}": version for name, version in environment.libraries.items()}
    found: dict[str, str | None] = {"device": device.name, "arch": device.arch}
    found |= {name: version for name, version in libraries.items() if name in asked}
    if not environment.assumptions:
        if device.type == "cpu":
            found |= {"device": _cpu_model() or device.name, "cpus": str(_cpus())}
        elif device.type == "cuda":
            found |= {"driver": _driver_version(), "cuda": _cuda_version()}
    return {name: value for name, value in found.items() if value}


def differences(measured: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """In words, what differs between the machine that was measured and the one at hand.

    >>> differences({"driver": "550", "lib.torch": "2.12"}, {"driver": "570", "lib.torch": "2.12"})
    ('driver version was 550, is 570',)
    """
    found = []
    for name, was in sorted(measured.items()):
        current = now.get(name)
        if current is None and name.startswith("lib."):
            current = "not installed"
        if current is not None and was != current:
            found.append(f"{_WORDS.get(name, name)} was {was}, is {current}")
    return tuple(found)


def source_of(kernel: Kernel, catalog: Catalog, parts: Mapping[str, str] | None = None, params: str = "") -> str:
    """The version of a kernel's distribution and a hash of its package's code, and the ``params`` that rules give it.

    Of a decomposition, those of the kernels of its ``parts``.
    """
    if is_decomposition(kernel):
        chosen = [f"{name}:{source_of(catalog.kernel(id), catalog)}" for name, id in sorted((parts or {}).items())]
        return f"{' '.join(sorted((parts or {}).values()))} {_digest(chosen)}"
    owner = catalog.owner(kernel.id)
    version = owner.version if owner is not None and owner.version else "0"
    prepare = kernel.prepare
    module = prepare.partition(":")[0] if isinstance(prepare, str) else getattr(prepare, "__module__", "")
    return f"{version} {package_hash(module.partition('.')[0])} {params}".rstrip()


@functools.cache
def package_hash(package: str) -> str:
    """A hash of all code in a top-level package; of its name alone where its files cannot be found."""
    spec = importlib.util.find_spec(package) if package and package != "__main__" else None
    digest = hashlib.sha256(package.encode())
    for file in _files(spec.submodule_search_locations, spec.origin) if spec is not None else ():
        digest.update(file.name.encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _files(folders: object, origin: str | None) -> list[Path]:
    if folders is None:
        return [Path(origin)] if origin and Path(origin).is_file() else []
    found = [p for folder in list(folders) for p in Path(folder).rglob("*")]  # type: ignore[call-overload]
    return sorted(p for p in found if p.suffix in _CODE and p.is_file())


def _digest(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


@functools.cache
def _driver_version() -> str | None:
    """The NVIDIA kernel driver's version, as it says itself."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    words = text.split("\n", 1)[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), None)


@functools.cache
def _cuda_version() -> str | None:
    """The CUDA version that the driver supports."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
