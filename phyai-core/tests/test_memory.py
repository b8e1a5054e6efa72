"""Which errors say that memory ran out."""

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
    "error", [RuntimeError("out of resource: shared memory"), ValueError(""), DeviceMemoryError("pi05 needs 7 GB")]
)
def test_other_errors_are_not(error):
    """Shared memory that a tile does not fit says something of the kernel; PhyAI's own error is the message already."""
    assert not ran_out(error)
