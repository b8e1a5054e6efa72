"""Why a call cannot be, where its parts do not agree: in words, as far as its facts are known, or None.

What :mod:`phyai.ops.fits` makes agree when a call is made up, these refuse when somebody asks for one.

>>> heads({"shape.heads": 3, "shape.kv_heads": 2})
'heads=3 is not a multiple of kv_heads=2'
>>> heads({"shape.heads": 3}) is None
True
"""

from __future__ import annotations

from collections.abc import Mapping

from phyai.facts import FactValue

Known = Mapping[str, FactValue]


def heads(facts: Known) -> str | None:
    """Query heads that do not share key heads evenly."""
    return _multiple(facts, "shape.heads", "shape.kv_heads")


def group_norm(facts: Known) -> str | None:
    """Channels that are no whole groups."""
    return _multiple(facts, "shape.C", "attrs.groups")


def convolution(facts: Known) -> str | None:
    """Channels that are not those of all groups together.

    >>> convolution({"shape.C": 6, "shape.C_group": 2, "attrs.groups": 2})
    'C=6 is not C_group * groups = 2 * 2'
    """
    c, per_group, groups = (_whole(facts, name) for name in ("shape.C", "shape.C_group", "attrs.groups"))
    if c is not None and per_group is not None and groups is not None and c != per_group * groups:
        return f"C={c} is not C_group * groups = {per_group} * {groups}"
    return _multiple(facts, "shape.O", "attrs.groups")


def patch_embedding(facts: Known) -> str | None:
    """Positions that are not those of an image's patches.

    >>> patch_embedding({"shape.patches": 3, "shape.height": 28, "shape.width": 30, "shape.patch": 14})
    '3 positions for the 4 patches of 14 x 14 in an image of 28 x 30'
    """
    given, height, width, patch = (_whole(facts, f"shape.{name}") for name in ("patches", "height", "width", "patch"))
    if given is None or height is None or width is None or not patch:
        return None
    patches = (height // patch) * (width // patch)
    if given == patches:
        return None
    return f"{given} positions for the {patches} patches of {patch} x {patch} in an image of {height} x {width}"


def condition_rows(facts: Known) -> str | None:
    """Rows of a condition that do not divide those that they apply to: the last ones would have none.

    >>> condition_rows({"shape.M": 6, "shape.R": 4})
    'the R=4 rows of the condition do not divide the M=6 rows that they apply to'
    """
    m, r = _whole(facts, "shape.M"), _whole(facts, "shape.R")
    if m is None or r is None or (m % r == 0 if r else m == 0):
        return None
    return f"the R={r} rows of the condition do not divide the M={m} rows that they apply to"


def rope(facts: Known) -> str | None:
    """A rotated part that is odd or larger than the head; positions that are not the tokens'; sections that are not
    three numbers of frequencies, or not all frequencies.

    >>> rope({"shape.rotary_dim": 3, "shape.head_dim": 8})
    'rotary_dim=3 is odd: it rotates pairs'
    >>> rope({"attrs.mrope_sections": "2,1,1", "shape.rotary_dim": 16})
    'mrope_sections=2,1,1 has 4 frequencies, not the 8 that rotary_dim=16 has: give three numbers that sum to 8'
    """
    m, p = _whole(facts, "shape.M"), _whole(facts, "shape.P")
    axes = 3 if "attrs.mrope_sections" in facts else 1
    if m is not None and p is not None and p != axes * m:
        return f"P={p} positions for M={m} tokens: give {'three for each' if axes == 3 else 'one for each'}"
    return _rotated(facts) or _sections(facts)


def qkv_rope_kv_write(facts: Known) -> str | None:
    """Outputs of the projection that are not the heads'; a rotated part as in :func:`rope`.

    >>> qkv_rope_kv_write({"shape.N": 7, "attrs.heads": 2, "attrs.kv_heads": 1, "attrs.head_dim": 4})
    'N=7 is not (heads + 2 * kv_heads) * head_dim = (2 + 2 * 1) * 4'
    """
    for name in ("heads", "kv_heads", "head_dim"):
        dim, attr = _whole(facts, f"shape.{name}"), _whole(facts, f"attrs.{name}")
        if dim is not None and attr is not None and dim != attr:
            return f"{name}={dim} in the tensors, {attr} as the attribute"
    n, q, kv, size = (_whole(facts, name) for name in ("shape.N", "attrs.heads", "attrs.kv_heads", "attrs.head_dim"))
    if n is not None and q is not None and kv is not None and size is not None and n != (q + 2 * kv) * size:
        return f"N={n} is not (heads + 2 * kv_heads) * head_dim = ({q} + 2 * {kv}) * {size}"
    return _rotated(facts)


def _rotated(facts: Known) -> str | None:
    rotary, size = _whole(facts, "shape.rotary_dim"), _whole(facts, "shape.head_dim")
    if rotary is not None and rotary % 2:
        return f"rotary_dim={rotary} is odd: it rotates pairs"
    if rotary is not None and size is not None and rotary > size:
        return f"rotary_dim={rotary} is more than head_dim={size}"
    return None


def _sections(facts: Known) -> str | None:
    sections, rotary = facts.get("attrs.mrope_sections"), _whole(facts, "shape.rotary_dim")
    if sections is None:
        return None
    counts = [count.strip() for count in str(sections).split(",")]
    if len(counts) != 3 or not all(count.isdecimal() for count in counts):
        return f"mrope_sections={sections} is not three whole numbers, the frequencies of the three axes as in 24,20,20"
    total = sum(map(int, counts))
    if rotary is None or total == rotary // 2:
        return None
    return (
        f"mrope_sections={sections} has {total} frequencies, not the {rotary // 2} that rotary_dim={rotary} has: "
        f"give three numbers that sum to {rotary // 2}"
    )


def _multiple(facts: Known, name: str, of: str) -> str | None:
    value, divisor = _whole(facts, name), _whole(facts, of)
    if value is None or not divisor or value % divisor == 0:
        return None
    return f"{name.partition('.')[2]}={value} is not a multiple of {of.partition('.')[2]}={divisor}"


def _whole(facts: Known, name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) else None
