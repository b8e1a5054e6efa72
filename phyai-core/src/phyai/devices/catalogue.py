"""Reading ``devices.toml`` and finding a device in it."""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import attrs

from phyai.environment import Device, DeviceError

#: Element types for which the catalogue states dense tensor-core peaks.
DTYPES_WITH_PEAKS: tuple[str, ...] = ("fp16", "bf16", "fp8", "fp4", "int8")


@attrs.frozen
class DeviceSpec:
    """What is publicly known of one GPU. None is what no public source was found for.

    Units: memory in GB (10^9 bytes) as sold, bandwidth in GB/s, L2 in MB as the vendor counts it, ``peaks`` in
    dense TFLOPS (TOPS for int8) per element type, floating point with fp32 accumulation. ``representative`` marks the
    device that stands for its architecture.
    """

    name: str
    title: str
    arch: str
    memory_gb: float
    sources: tuple[str, ...] = attrs.field(converter=tuple)
    sm_count: int | None = None
    bandwidth_gb_s: float | None = None
    l2_mb: float | None = None
    peaks: Mapping[str, float] = attrs.field(factory=dict)
    aliases: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    representative: bool = False
    note: str = ""

    def peak(self, dtype: str) -> float | None:
        """Dense TFLOPS for an element type; None when the device lacks it or no source was found."""
        return self.peaks.get(dtype)

    def device(self) -> Device:
        """The device as an environment holds it."""
        return Device("cuda", "nvidia", self.arch, self.title, self.sm_count, self.memory_gb)


@functools.cache
def known_devices() -> tuple[DeviceSpec, ...]:
    """Every device of the catalogue, older architectures first."""
    text = resources.files("phyai.devices").joinpath("devices.toml").read_text(encoding="utf-8")
    records: dict[str, dict[str, Any]] = tomllib.loads(text)
    return tuple(DeviceSpec(name=name, **fields) for name, fields in records.items())


def find_device(name: str) -> DeviceSpec:
    """The device of that name (``h200``, ``NVIDIA H200``, case and punctuation do not matter), or the one that
    stands for an architecture (``sm90``).

    Raises:
        DeviceError: it is not in the catalogue; the message suggests the nearest names.
    """
    wanted = _key(name)
    spellings: dict[str, DeviceSpec] = {}
    for spec in known_devices():
        for spelling in (spec.name, spec.title, *spec.aliases, *([spec.arch] if spec.representative else [])):
            spellings.setdefault(_key(spelling), spec)
    found = spellings.get(wanted)
    if found is not None:
        return found
    near = [_written(spellings[key], key) for key in difflib.get_close_matches(wanted, list(spellings), n=3)]
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    names = ", ".join(spec.name for spec in known_devices())
    raise DeviceError(f"unknown device {name!r}; {hint or f'known devices: {names}; or an architecture such as sm90'}")


def _written(spec: DeviceSpec, key: str) -> str:
    """How a device is asked for by a spelling: as its architecture, or by its name."""
    return spec.arch if key == spec.arch else spec.name


def named(title: str) -> DeviceSpec | None:
    """The device that the driver calls ``title``, or None."""
    return next((spec for spec in known_devices() if spec.title == title), None)


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("geforce").removeprefix("tesla")
