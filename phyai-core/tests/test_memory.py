"""Which errors say that memory ran out."""

import errno
import os
import subprocess
import sys

import pytest
from phyai.errors import DeviceMemoryError
from phyai.memory import ran_out

torch = pytest.importorskip("torch", reason="its allocator's words are the test")


def test_torchs_own_class_is_known():
    assert ran_out(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."))


def test_what_torchs_allocator_for_the_cpu_raises_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert ran_out(caught.value)


def test_what_python_raises_is_known():
    with pytest.raises(MemoryError) as caught:
        bytearray(1 << 60)
    assert ran_out(caught.value)


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'",  # torch's checks of the runtime
        "CUDA driver error: out of memory",  # and of the driver: expandable segments
        "cudaErrorMemoryAllocation: out of memory",  # CuPy's
        "Triton Error [CUDA]: out of memory",
        "BatchPrefillWithPagedKVCache failed with error out of memory",  # FlashInfer's
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "std::bad_alloc",  # what C++ throws, through torch
    ],
)
def test_what_cuda_and_libraries_say_is_known(said):
    assert ran_out(RuntimeError(said))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS, which makes memory run out here")
def test_a_file_that_there_is_no_memory_to_map_is_known(tmp_path):
    path = tmp_path / "weights"
    path.touch()
    os.truncate(path, 1 << 40)  # sparse
    program = (
        "import mmap, resource, sys, torch; from phyai.memory import ran_out\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 39, -1))\n"
        "def maps():\n"
        "    with open(sys.argv[1], 'rb') as file: mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
        "for work in (maps, lambda: torch.UntypedStorage.from_file(sys.argv[1], False, 1 << 40)):\n"
        "    try: work()\n"
        "    except Exception as error: print(type(error).__name__, ran_out(error))\n"
    )
    said = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["OSError True", "RuntimeError True"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("out of resource: shared memory"),
        ValueError(""),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "out of memory"),
        DeviceMemoryError("pi05 needs 7 GB"),
    ],
)
def test_other_errors_are_not(error):
    """Shared memory that a tile does not fit says something of the kernel; PhyAI's own error is the message already."""
    assert not ran_out(error)
