"""Loading the library. The only module that imports it, and only when a kernel is prepared."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

#: The library's registries of compiled kernels are plain dictionaries of the process.
LOCK = threading.RLock()


@functools.cache
def library() -> SimpleNamespace:
    """The library's functions and classes that this backend uses.

    int8 inputs with int4 weights would have compiled code rewritten to an instruction form that NVIDIA does not
    document; that stays off unless ``HUMMING_DISABLE_PATCH_CUBIN=0`` is set.

    Raises:
        ImportError: the library, or something that it needs, cannot be imported.
    """
    os.environ.setdefault("HUMMING_DISABLE_PATCH_CUBIN", "1")
    choose_compiler()
    from humming import transform
    from humming.config import LayerConfig
    from humming.kernel.humming import HummingKernel
    from humming.schema import HummingInputSchema, HummingWeightSchema
    from humming.tune import get_heuristics_config
    from humming.utils.cpu import get_parallel_build_workers

    return SimpleNamespace(
        LayerConfig=LayerConfig,
        HummingKernel=HummingKernel,
        InputSchema=HummingInputSchema,
        WeightSchema=HummingWeightSchema,
        heuristics=get_heuristics_config,
        prepare_layer_config=transform.prepare_layer_config,
        transform_tensors=transform.transform_humming_tensors,
        transform_bias=transform.transform_humming_bias,
        workers=get_parallel_build_workers,
        launcher=_launcher,
    )


def choose_compiler() -> None:
    """Where NVRTC is missing and nvcc is there, say so to the library.

    It takes NVRTC wherever Python bindings for it can be imported, even without NVRTC itself, and does not fall back.
    """
    if os.environ.get("HUMMING_COMPILER"):
        return
    from humming.utils import cuda, nvrtc

    try:
        nvrtc.get_nvrtc_library_path()
    except RuntimeError:
        try:
            cuda.filter_cuda_paths(required_binaries=["nvcc"])
        except RuntimeError:
            return  # neither is there: the library says what to install
        os.environ["HUMMING_COMPILER"] = "nvcc"


def _launcher() -> Callable[..., Any]:
    """The operator that launches a compiled kernel into a given output. There once a kernel was compiled."""
    import torch

    found: Callable[..., Any] = torch.ops.humming.launch_kernel.out
    return found
