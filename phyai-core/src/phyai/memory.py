"""Telling memory that ran out from what a kernel does wrong."""

from __future__ import annotations

import re

from phyai.errors import PhyAIError

#: How CUDA, its libraries and torch's allocator for the CPU say it, in errors that have no class of their own: a graph
#: that is instantiated, a program that is loaded, a library's workspace.
_RAN_OUT = re.compile(
    r"CUDA( error|\])?: out of memory|CUDA_ERROR_OUT_OF_MEMORY|CU(BLAS|DNN)_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
)


def ran_out(error: BaseException) -> bool:
    """Whether ``error`` says that memory, a device's or the host's, ran out. One of PhyAI's own says so itself.

    >>> ran_out(RuntimeError("Triton Error [CUDA]: out of memory")), ran_out(RuntimeError("out of registers"))
    (True, False)
    """
    if isinstance(error, PhyAIError):
        return False
    # torch's class goes by its name: nothing here imports torch
    named = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    return named or isinstance(error, MemoryError) or bool(_RAN_OUT.search(str(error)))
