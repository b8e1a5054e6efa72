"""The two orders that are not Python's own: architectures within a vendor, versions by PEP 440."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from typing import Any

from packaging.version import InvalidVersion, Version

ORDERINGS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

#: Architectures that exist, by family and in order; what a witness may name.
KNOWN_ARCHS: tuple[str, ...] = (
    "sm70", "sm72", "sm75", "sm80", "sm86", "sm87", "sm88", "sm89", "sm90", "sm100", "sm101", "sm103", "sm110",
    "sm120", "sm121",
    "gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201",
)  # fmt: skip

_ARCH = re.compile(r"(sm)(\d{1,4})|(gfx)(\d{1,2})(\d)([0-9a-f])")


@functools.lru_cache(maxsize=1024)
def arch_key(name: str) -> tuple[str, tuple[int, ...]] | None:
    """The family of an architecture and its place in that family; None when the name is not one.

    >>> arch_key("sm90"), arch_key("gfx90a"), arch_key("sm9O")
    (('sm', (90,)), ('gfx', (9, 0, 10)), None)
    """
    found = _ARCH.fullmatch(name)
    if found is None:
        return None
    if found[1]:
        return "sm", (int(found[2]),)
    return "gfx", (int(found[4]), int(found[5]), int(found[6], 16))


def compare_archs(value: str, order: str, bound: str) -> bool | None:
    """``value order bound``; false across families, None when ``value`` is no architecture."""
    left, right = arch_key(value), arch_key(bound)
    if left is None or right is None:
        return None
    return left[0] == right[0] and ORDERINGS[order](left[1], right[1])


@functools.lru_cache(maxsize=1024)
def public_version(text: str) -> Version | None:
    """The version without its local part (``+cu128``); None when the text is not a version."""
    try:
        return Version(Version(text).public)
    except InvalidVersion:
        return None


def compare_versions(value: str, order: str, bound: str) -> bool | None:
    """``value order bound`` as PEP 440 reads a specifier; None when ``value`` is no version.

    Local parts are ignored, ``<1.2`` leaves out the pre-releases of 1.2, and ``>1.2`` its post-releases.

    >>> compare_versions("0.7.1+cu128", "==", "0.7.1"), compare_versions("0.8rc1", "<", "0.8")
    (True, False)
    """
    left, right = public_version(value), public_version(bound)
    if left is None or right is None:
        return None
    plain = not right.is_prerelease and not right.is_postrelease
    if order == "<" and not right.is_prerelease:
        return left < first_of(right)
    if order == ">" and plain:
        return _release(left) > _release(right)
    return ORDERINGS[order](left, right)


def first_of(version: Version) -> Version:
    """The earliest version that counts as a pre-release of ``version``."""
    return version if version.is_devrelease else Version(f"{version}.dev0")


def _release(version: Version) -> tuple[int, tuple[int, ...]]:
    release = version.release
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    return version.epoch, release
