"""What a misspelt name was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that ``name`` is nearest to (first of all in another case), or None when none is near.

    >>> nearest("GEMM", ["gemm", "rope"]), nearest("rms_nrom", ["rms_norm"]), nearest("rope", ["gemm"])
    ('gemm', 'rms_norm', None)
    """
    import difflib

    options = list(known)
    same = [option for option in options if option.lower() == name.lower()]
    return next(iter(same or difflib.get_close_matches(name, options, n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The suggestion for a misspelt name, or None.

    >>> did_you_mean("restrictto", ["prefer", "restrict_to"])
    'did you mean `restrict_to`?'
    """
    near = nearest(name, known, cutoff=cutoff)
    return f"did you mean `{near}`?" if near is not None else None
