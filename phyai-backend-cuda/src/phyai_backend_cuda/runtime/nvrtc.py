"""CUDA C++ sources of this package, compiled by NVRTC through CuPy and cached on disk as cubins.

The cache key is the text of the source and of every header in ``csrc``, the options, the architecture and the NVRTC
version, so an edited source or another toolkit never meets a stale binary. ``PHYAI_CUDA_CACHE_DIR`` names the folder
(default ``~/.cache/phyai/cuda``); files are written whole and renamed, so processes may share it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from phyai.files.replacing import replacing

SOURCES = Path(__file__).parents[1] / "csrc"
#: What the compiler says of tensor-core products that it made wait for each other.
SERIALIZED = "wgmma.mma_async instructions are serialized"
_log = logging.getLogger("phyai.cuda")


def cache_dir() -> Path:
    named = os.environ.get("PHYAI_CUDA_CACHE_DIR")
    return Path(named) if named else Path.home() / ".cache" / "phyai" / "cuda"


def source_digest(name: str, options: tuple[str, ...]) -> str:
    """SHA-256 over the source, every header it can include, and the options."""
    digest = hashlib.sha256(repr(options).encode())
    for path in [SOURCES / name, *sorted(SOURCES.rglob("*.cuh"))]:
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _options(defines: Mapping[str, int], arch: str) -> tuple[str, ...]:
    return (f"-arch={arch}", "-std=c++17", f"-I{SOURCES}", *(f"-D{k}={v}" for k, v in sorted(defines.items())))


def compile_cubin(name: str, defines: Mapping[str, int], arch: str) -> bytes:
    """The cubin of ``csrc/<name>`` for ``arch`` (``sm_90a``), from the cache or from NVRTC.

    Where an old NVRTC makes products wait for each other, a warning says so: the kernel is right, and slow.

    Raises:
        RuntimeError: NVRTC refused the source; the message ends with its log.
    """
    from cupy.cuda import nvrtc

    options = _options(defines, arch)
    key = source_digest(name, (*options[:2], *options[3:], repr(nvrtc.getVersion())))
    cached = cache_dir() / f"{Path(name).name}-{arch}-{key[:32]}.cubin"
    if cached.is_file():
        return cached.read_bytes()
    include = _toolkit_include()
    program = nvrtc.createProgram((SOURCES / name).read_text(encoding="utf-8"), name, (), ())
    try:
        nvrtc.compileProgram(program, (*options, *(f"-I{path}" for path in include)))
        cubin: bytes = nvrtc.getCUBIN(program)
        if SERIALIZED in nvrtc.getProgramLog(program):
            _log.warning(
                "NVRTC %d.%d compiled %s with its tensor-core products one after another, which makes it slow; "
                "NVRTC 12.9 or later does not", *nvrtc.getVersion(), name,
            )  # fmt: skip
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC could not compile {name} for {arch}:\n{nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with replacing(cached) as file:
        file.write(cubin)
    return cubin


def _toolkit_include() -> list[str]:
    """Folders that hold ``cuda_bf16.h``: CuPy's own, the toolkit's, or the nvidia wheels'."""
    import cupy

    roots = [Path(cupy.__file__).parent / "_core" / "include"]
    roots += [Path(os.environ[named]) / "include" for named in ("CUDA_PATH", "CUDA_HOME") if named in os.environ]
    roots.append(Path("/usr/local/cuda/include"))
    try:
        import nvidia

        for base in nvidia.__path__:
            roots += sorted(Path(base).glob("*/include"))
    except ImportError:
        pass
    return [str(root) for root in roots if root.is_dir()]
