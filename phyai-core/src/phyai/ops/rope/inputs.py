"""Positions of a call whose positions have three axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phyai.synthesize import SynthesizedCall


def fill(call: SynthesizedCall, generator: Any) -> None:
    """Shape ``positions`` as ``[3, M]`` where there are ``mrope_sections``."""
    if call.attrs["mrope_sections"] is not None:
        call.inputs["positions"] = call.inputs["positions"].reshape(3, -1)
