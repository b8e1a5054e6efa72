"""What an engine lends to the kernels that it prepares."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from phyai.environment import Device
from phyai.errors import FrozenSiteError


class EngineResources:
    """Workspaces and shared objects of one engine, on one device. Nothing here is global.

    A workspace that is asked for again with more bytes is allocated anew; kernels that were prepared before
    keep the tensor that they got, which stays valid. After freezing, workspaces no longer grow: captured
    graphs hold their addresses.
    """

    #: No site's: a kernel that is prepared with an engine's own resources may meet any number of rows.
    rows: tuple[int, int] | None = None

    def __init__(self, device: Device) -> None:
        self._device = f"{device.type}:{device.index}" if device.type != "cpu" else "cpu"
        self._workspaces: dict[str, Any] = {}
        self._shared: dict[Hashable, Any] = {}
        self._lock = threading.RLock()
        self._frozen = False

    def workspace(self, key: str, nbytes: int) -> Any:
        """A uint8 tensor of at least ``nbytes`` bytes, shared by all who use ``key``.

        Raises:
            FrozenSiteError: a larger one is asked for after freezing.
        """
        with self._lock:
            held = self._workspaces.get(key)
            if held is not None and held.numel() >= nbytes:
                return held
            if self._frozen:
                has = 0 if held is None else held.numel()
                raise FrozenSiteError(
                    f"workspace {key!r} has {has} bytes and is asked for {nbytes} after freezing; "
                    f"run one such call before freeze(), or thaw() first"
                )
            import torch

            self._workspaces[key] = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            return self._workspaces[key]

    def shared(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The object that ``make`` returned the first time that ``key`` was asked for."""
        with self._lock:
            if key not in self._shared:
                self._shared[key] = make()
            return self._shared[key]

    def release(self) -> None:
        """Forget every workspace and shared object."""
        with self._lock:
            self._workspaces.clear()
            self._shared.clear()

    def freeze(self) -> None:
        self._frozen = True

    def thaw(self) -> None:
        self._frozen = False
