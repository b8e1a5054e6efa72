"""Where calls run: one device and the libraries that are installed. Passed in, never looked up while deciding.

An :class:`Environment` is plain data, so the same decision can be made for the GPU in this machine
(:meth:`Environment.detect`) and for one that is not here (:meth:`Environment.simulated`). Neither
imports a tensor library: devices are read from the NVIDIA driver, versions from the metadata of
installed distributions.

>>> env = Environment.simulated("h200", libraries=())
>>> env.device.arch, env.device.sm_count, env.facts()["device.vendor"]
('sm90', 132, 'nvidia')
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib import metadata

import attrs
from packaging.version import Version

from phyai.errors import PhyAIError
from phyai.facts import Facts, FactValue


class DeviceError(PhyAIError, ValueError):
    """A device was asked for that is not there, or that the catalogue does not know."""


@attrs.frozen
class Device:
    """One device. ``memory_gb`` counts 10^9 bytes. What is not known is None, and yields no fact."""

    type: str
    vendor: str | None = None
    arch: str | None = None
    name: str | None = None
    sm_count: int | None = None
    memory_gb: float | None = None
    index: int = 0

    def __str__(self) -> str:
        place = f"{self.type}:{self.index}" if self.type == "cuda" else self.type
        details = ", ".join(part for part in (self.name, self.arch) if part)
        return f"{place} ({details})" if details else place

    def facts(self) -> dict[str, FactValue]:
        """The ``device.*`` facts."""
        values = attrs.asdict(self, filter=lambda field, value: field.name != "index" and value is not None)
        return {f"device.{name}": value for name, value in values.items()}


@attrs.frozen
class Library:
    """A library whose version kernels may ask for, as the fact ``lib.<name>``.

    Backends declare theirs with the hook ``phyai_libraries``. ``distributions`` are the names under which it
    is published (the first one installed counts, and the first is what a user is told to install).
    ``assumed`` is the version that an answer for another machine takes for granted; the answer says so.
    """

    name: str
    distributions: tuple[str, ...] = attrs.field(validator=attrs.validators.min_len(1))
    assumed: str = attrs.field(validator=lambda _library, _field, value: Version(value))

    def installed(self) -> str | None:
        """The installed version, from metadata alone; None when it is not installed."""
        for distribution in self.distributions:
            try:
                version = metadata.version(distribution)
            except metadata.PackageNotFoundError:
                continue
            if version:  # metadata of a half-removed distribution has none
                return version
        return None


def merge_libraries(declared: Iterable[Library]) -> tuple[Library, ...]:
    """One record per library: what two backends declare of the same one is put together.

    >>> merge_libraries([Library("t", ("a",), "3.9"), Library("t", ("b", "a"), "3.10")])
    (Library(name='t', distributions=('a', 'b'), assumed='3.10'),)
    """
    merged: dict[str, Library] = {}
    for library in declared:
        known = merged.get(library.name, library)
        distributions = tuple(dict.fromkeys((*known.distributions, *library.distributions)))
        merged[library.name] = Library(library.name, distributions, max(known.assumed, library.assumed, key=Version))
    return tuple(merged.values())


#: The one library that the core itself declares: tensors are torch's.
CORE_LIBRARIES: tuple[Library, ...] = (Library("torch", ("torch",), "2.13.0"),)


@attrs.frozen
class Environment:
    """One device and the versions of the installed libraries, by fact name without ``lib.``.

    ``assumptions`` says, a sentence each, what was taken for granted about a machine that is not this one.
    """

    device: Device
    libraries: Mapping[str, str] = attrs.field(factory=dict)
    assumptions: tuple[str, ...] = ()

    def facts(self) -> Facts:
        """The ``device.*`` and ``lib.*`` facts."""
        return Facts(self.device.facts() | {f"lib.{name}": version for name, version in self.libraries.items()})

    @classmethod
    def detect(cls, device: str = "auto", *, libraries: Iterable[Library] | None = None) -> Environment:
        """This machine's ``device`` (``auto``, ``cpu``, ``cuda``, ``cuda:1``) and the installed libraries.

        ``auto`` is the first CUDA device, or the CPU where there is none. ``libraries`` are those to look for, normally
        ``catalog.libraries``; None asks every installed plug-in.

        Raises:
            DeviceError: no such device here.
        """
        found = ((library.name, library.installed()) for library in _declared(libraries))
        return cls(detect_device(device), {name: version for name, version in found if version})

    @classmethod
    def simulated(cls, device: str, *, libraries: Iterable[Library] | Mapping[str, str] | None = None) -> Environment:
        """An environment that need not exist: ``sm90``, ``h200``, ``cpu``, … with ``libraries``.

        ``libraries`` is a mapping of versions, or declared libraries: one that is installed here counts with its
        installed version, another with the version its backend assumes (and ``assumptions`` says so). None asks
        every installed plug-in.

        Raises:
            DeviceError: the device catalogue does not know ``device``.
        """
        from phyai.devices import find_device

        assumptions: list[str] = []
        if device == "cpu":
            target = detect_device("cpu")
        else:
            spec = find_device(device)
            target = spec.device()
            if device == spec.arch:
                assumptions.append(f"{spec.title} stands for {device}")
        if isinstance(libraries, Mapping):
            return cls(target, dict(libraries), tuple(assumptions))
        versions: dict[str, str] = {}
        for library in _declared(libraries):
            version = library.installed()
            if version is None:
                version = library.assumed
                assumptions.append(f"lib.{library.name}={version}: not installed here, declared by its backend")
            versions[library.name] = version
        return cls(target, versions, tuple(assumptions))


def _declared(libraries: Iterable[Library] | None) -> Iterable[Library]:
    if libraries is not None:
        return libraries
    from phyai.plugins import discover

    return discover().libraries


def detect_device(name: str) -> Device:
    """The device ``auto``, ``cpu``, ``cuda`` or ``cuda:<index>`` of this machine.

    Raises:
        DeviceError: the name has another form, or there is no such device.
    """
    from phyai.devices.driver import cuda_devices

    kind, _, suffix = name.partition(":")
    if name == "cpu":
        return Device("cpu", name=platform.processor() or platform.machine() or None)
    if name == "auto":
        return next(iter(cuda_devices()), None) or detect_device("cpu")
    if kind != "cuda" or (":" in name and not suffix.isdecimal()):
        raise DeviceError(f"device {name!r} is none of auto, cpu, cuda, cuda:<index>")
    index = int(suffix or 0)
    devices = cuda_devices()
    if index >= len(devices):
        here = f"CUDA devices here: {len(devices)}" if devices else "no CUDA device (or no driver) is here"
        raise DeviceError(f"device {name!r} is not there: {here}; use cpu, or simulate a GPU by name (h200, sm90)")
    return devices[index]
