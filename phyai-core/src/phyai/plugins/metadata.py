"""What the metadata of installed distributions says about plug-ins. Reads files; imports no plug-in."""

from __future__ import annotations

import configparser
import importlib
import re
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from types import ModuleType

import attrs
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from phyai.errors import first_line
from phyai.plugins.hooks import GROUPS


@attrs.frozen
class Offer:
    """One entry point in one of our groups.

    ``installed`` holds (version, folder) of every distinct version of its distribution on ``sys.path``, the one that
    Python imports first. ``requires`` are the distribution's requirements as its metadata writes them. ``damage`` says
    what is wrong with the metadata itself.
    """

    name: str
    group: str
    value: str
    distribution: str
    version: str
    place: str = ""
    installed: tuple[tuple[str, str], ...] = ()
    requires: tuple[str, ...] = ()
    damage: str = ""

    def load(self) -> ModuleType:
        """Import the module that the entry point names."""
        module, _, attribute = self.value.partition(":")
        target = importlib.import_module(module)
        for name in filter(None, attribute.split(".")):
            target = getattr(target, name)
        return target


def installed_offers() -> tuple[Offer, ...]:
    """Every entry point in our groups on ``sys.path``."""
    copies: dict[str, list[tuple[metadata.Distribution, str]]] = defaultdict(list)
    for distribution in metadata.distributions():
        text = _entry_points(distribution)
        if any(group in text for group in GROUPS):
            copies[normalized(_name(distribution))].append((distribution, text))
    return tuple(offer for several in copies.values() for offer in _offers(several))


def _offers(copies: list[tuple[metadata.Distribution, str]]) -> list[Offer]:
    versions: dict[str, str] = {}
    for distribution, _ in copies:
        versions.setdefault(_version(distribution), _place(distribution))
    first, text = copies[0]
    name = normalized(_name(first))
    damage = (
        "" if _field(first, "Version") else "its metadata has no version: the METADATA file is gone or cannot be read"
    )
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        damage = f"its entry_points.txt cannot be read: {first_line(error)}"
        return [Offer(name, GROUPS[0], "", name, _version(first), _place(first), damage=damage)]
    return [
        Offer(
            name=entry,
            group=group,
            value=value.partition("[")[0].strip(),
            distribution=name,
            version=_version(first),
            place=_place(first),
            installed=tuple(versions.items()),
            requires=() if damage else tuple(first.requires or ()),
            damage=damage,
        )
        for group in GROUPS
        if parser.has_section(group)
        for entry, value in parser.items(group)
    ]


def normalized(name: str) -> str:
    """A distribution's name as PEP 503 normalizes it.

    >>> normalized("Phyai_Backend.Example")
    'phyai-backend-example'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _place(distribution: metadata.Distribution) -> str:
    return str(getattr(distribution, "_path", "unknown place"))


def _entry_points(distribution: metadata.Distribution) -> str:
    try:
        return distribution.read_text("entry_points.txt") or ""
    except UnicodeDecodeError:
        return (Path(_place(distribution)) / "entry_points.txt").read_text(encoding="utf-8", errors="replace")


def _field(distribution: metadata.Distribution, name: str) -> str | None:
    try:
        fields = distribution.metadata
    except UnicodeDecodeError:
        return None
    return fields[name] if fields is not None and name in fields else None


def _name(distribution: metadata.Distribution) -> str:
    """Its name; from the folder's name when METADATA is gone."""
    return _field(distribution, "Name") or re.split(r"[/\\]", _place(distribution))[-1].partition("-")[0]


def _version(distribution: metadata.Distribution) -> str:
    return _field(distribution, "Version") or "unknown version"


def unmet_requirements(offer: Offer) -> list[tuple[Requirement, str]]:
    """The requirements of its distribution that are not met here (extras left out), each with what is installed."""
    unmet = []
    for text in offer.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        requirement.marker = None
        try:
            version = metadata.version(requirement.name)
            fits = requirement.specifier.contains(Version(version), prereleases=True)
        except (metadata.PackageNotFoundError, InvalidVersion, TypeError):
            unmet.append((requirement, "it is not installed"))
            continue
        if not fits:
            unmet.append((requirement, f"{version} is installed"))
    return unmet
