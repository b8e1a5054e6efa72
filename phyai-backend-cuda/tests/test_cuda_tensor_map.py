"""Descriptions for the copy engine, as a driver is asked for them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from phyai_backend_cuda.runtime import tensor_map
from phyai_backend_cuda.runtime.tensor_map import box_map


class Driver:
    """Keeps what it was asked: the type, the address, sizes and steps in bytes, the box, and how it lies swizzled."""

    def __init__(self, code: int = 0) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.code = code

    def cuTensorMapEncodeTiled(self, place: Any, kind: Any, rank: Any, at: Any, *more: Any) -> int:
        sizes, steps, box, _, _, swizzle, *_ = more
        ctypes.memset(place, 1 + len(self.asked), tensor_map.BYTES)
        self.asked.append((kind.value, at.value, list(sizes), list(steps), list(box), swizzle.value))
        return self.code


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    monkeypatch.setattr(tensor_map, "driver", lambda: made)
    tensor_map._encoded.cache_clear()
    yield made
    tensor_map._encoded.cache_clear()


def test_the_innermost_dimension_is_asked_for_first_and_steps_are_in_bytes(driver: Driver) -> None:
    """cuTensorMapEncodeTiled in the CUDA driver API: globalStrides has one entry less than globalDim."""
    t = torch.zeros(3, 256, 16, 72, dtype=torch.bfloat16).transpose(1, 2)
    box_map(t, (1, 1, 64), 32)
    steps = [16 * 72 * 2, 72 * 2, 256 * 16 * 72 * 2]
    assert driver.asked == [(9, t.data_ptr(), [72, 256, 16, 3], steps, [16, 64, 1, 1], 1)]


def test_memory_that_lies_the_same_way_is_described_once(driver: Driver) -> None:
    t = torch.zeros(4, 128, dtype=torch.float16)
    first = bytes(box_map(t, (2,)))
    assert bytes(box_map(t.view(4, 128), (2,))) == first == b"\x01" * 128
    assert len(driver.asked) == 1


@pytest.mark.parametrize(
    "other",
    [
        lambda t: box_map(t, (4,)),
        lambda t: box_map(t, (2,), 64),
        lambda t: box_map(t[1:], (2,)),
        lambda t: box_map(t[:2], (2,)),
        lambda t: box_map(t[::2], (2,)),
        lambda t: box_map(t.view(torch.bfloat16), (2,)),
        lambda t: box_map(t.clone(), (2,)),
    ],
    ids=["box", "width", "address", "size", "step", "dtype", "memory"],
)
def test_what_lies_another_way_is_described_anew(other: Any, driver: Driver) -> None:
    t = torch.zeros(4, 128, dtype=torch.float16)
    assert bytes(box_map(t, (2,))) != bytes(other(t))
    assert len(driver.asked) == 2


def test_what_the_driver_refuses_is_an_error_each_time(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(code: int, what: str) -> None:
        raise RuntimeError(f"{what}: {code}")

    driver.code = 1
    monkeypatch.setattr(tensor_map, "check", check)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^describing a tensor of 4 x 128: 1$"):
            box_map(torch.zeros(4, 128, dtype=torch.float16), (2,))
