"""Telling memory that ran out from what a kernel does wrong."""

from __future__ import annotations

import errno
import re

from phyai.errors import PhyAIError

#: How CUDA (``cudaGetErrorString``, whatever stands before it), its libraries, C++ and torch on the CPU say it, in
#: errors that have no class of their own: a graph that is instantiated, a program that is loaded, a library's
#: workspace, a file that is mapped.
_RAN_OUT = re.compile(
    r"\bout of memory\b|CUDA_ERROR_OUT_OF_MEMORY|CU(BLAS|DNN)_STATUS_ALLOC_FAILED|std::bad_alloc"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory|unable to mmap .*: Cannot allocate memory"
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
    if named or isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return bool(_RAN_OUT.search(str(error)))


def may_be_the_kernels(error: BaseException) -> bool:
    """Whether what a kernel raised may be its own fault: not a mistake in a declaration or a call, which PhyAI says
    itself, and not memory that ran out.

    >>> may_be_the_kernels(ImportError("no such library")), may_be_the_kernels(MemoryError())
    (True, False)
    """
    return not (isinstance(error, PhyAIError) or ran_out(error))
