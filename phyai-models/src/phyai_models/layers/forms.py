"""The quantized forms of new weights, against those of the weights in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phyai.errors import CheckpointError
from phyai.facts import FactValue


def same_form(old: Sequence[Mapping[str, FactValue]], new: Sequence[Mapping[str, FactValue]], where: str) -> None:
    """Refuse new weights whose quantized form differs from that of those in use.

    Raises:
        CheckpointError: it does.
    """
    if list(old) != list(new):
        raise CheckpointError(
            f"{where}: the new weights are {_in_words(new, old)}, and those in use {_in_words(old, new)}; "
            "make a new engine with them"
        )


def _in_words(forms: Sequence[Mapping[str, FactValue]], others: Sequence[Mapping[str, FactValue]]) -> str:
    """Their schemes, and what sets them apart from others of the same scheme.

    >>> w4 = {"quant.scheme": "w4a16_g32", "quant.scale_dtype": "bf16"}
    >>> _in_words([w4, w4], [{}]), _in_words([{}], [w4, w4])
    ('quantized as w4a16_g32', 'unquantized')
    >>> _in_words([w4], [{**w4, "quant.scale_dtype": "fp32"}])
    'quantized as w4a16_g32 (quant.scale_dtype=bf16)'
    """
    said = []
    for form in forms:
        scheme = form.get("quant.scheme")
        same = [other for other in others if scheme is not None and other.get("quant.scheme") == scheme]
        own = [f"{name}={value}" for name, value in form.items() if any(other.get(name) != value for other in same)]
        said.append(
            "unquantized" if scheme is None else f"quantized as {scheme}" + (f" ({', '.join(own)})" if own else "")
        )
    return " and ".join(dict.fromkeys(said))
