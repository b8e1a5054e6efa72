"""What a runner is made of, on a GPU: buffers that are copied, work beside other work, memory that runs out."""

import gc

import pytest
import torch
from phyai.errors import DeviceMemoryError
from phyai_models.runner import Aside, Mirror, memory_errors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def test_running_out_of_memory_leaves_nothing_allocated():
    gc.collect()  # what earlier tests left would otherwise be collected in between
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    held = []

    def fill():
        while True:
            held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))

    with (
        pytest.raises(DeviceMemoryError, match=r"filling needs 1000\.00 GB .* GB were still free"),
        memory_errors(torch.device("cuda"), "filling", 10**12, "do not", held.clear),
    ):
        fill()
    assert torch.cuda.memory_allocated() == before


def test_what_comes_before_a_name_is_copied_when_it_is_the_last():
    mirror = Mirror({"a": (torch.int64, 4), "b": (torch.float32, 100), "c": (torch.int32, 8)}, torch.device("cuda"))
    for tensor in mirror.host.values():
        tensor.fill_(1)
    mirror.upload("b")
    assert [int(tensor.sum()) for tensor in mirror.device.values()] == [4, 100, 0]
    mirror.upload()
    assert [int(tensor.sum()) for tensor in mirror.device.values()] == [4, 100, 8]


def test_work_beside_other_work_comes_behind_the_fork_and_is_waited_for():
    aside, late = Aside(torch.device("cuda")), torch.zeros(1 << 20, device="cuda")
    torch.cuda._sleep(20_000_000)
    late.fill_(1)
    aside.fork()
    torch.cuda._sleep(20_000_000)

    def fails():
        with aside.beside():
            late.mul_(3)  # would be zero, had it come before the fork
            torch.cuda._sleep(20_000_000)
            late.add_(1)
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fails()
    assert int(late.sum()) == 4 << 20
