"""Device memory: what a model takes of it, and saying so when it is not enough."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Callable, Iterator

import attrs
import torch
from phyai.errors import DeviceMemoryError, first_line
from phyai.memory import ran_out


@attrs.frozen
class MemoryReport:
    """Bytes on the device: ``parameters``, ``cache`` (keys and values), ``buffers`` (inputs and outputs of the
    recorded computations), ``graphs`` (their intermediate results), and ``recordings``, how many there are."""

    parameters: int
    cache: int
    buffers: int
    graphs: int
    recordings: int

    @property
    def total(self) -> int:
        return self.parameters + self.cache + self.buffers + self.graphs


def free_bytes(device: torch.device) -> int | None:
    """What can still be allocated on a GPU; None where that is not known."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def require_free(
    needed: int, device: torch.device, what: str, advice: str, free: Callable[[torch.device], int | None] = free_bytes
) -> None:
    """Refuse before anything is allocated.

    Raises:
        DeviceMemoryError: less than ``needed`` bytes are free.
    """
    available = free(device)
    if available is not None and needed > available:
        raise DeviceMemoryError(
            f"{what} needs {_gb(needed)} of memory on {device}, and {_gb(available)} are free; {advice}"
        )


@contextlib.contextmanager
def memory_errors(
    device: torch.device, what: str, needed: int, advice: str, release: Callable[[], None]
) -> Iterator[None]:
    """Turn running out of memory into a :class:`phyai.errors.DeviceMemoryError`, after ``release`` has let go of what
    was allocated for ``what``; ``needed`` is how much it takes in all.

    Raises:
        DeviceMemoryError: the device's memory ran out.
    """
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        free = free_bytes(device)
        traceback.clear_frames(error.__traceback__)  # they hold what was allocated
        release()
        said = first_line(error)
    else:
        return
    give_back(device)
    had = "" if free is None else f", of which {_gb(free)} were still free when an allocation failed"
    raise DeviceMemoryError(f"{what} needs {_gb(needed)} of memory on {device}{had}; {advice} ({said})")


def give_back(device: torch.device) -> None:
    """Return what nobody holds any more to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
