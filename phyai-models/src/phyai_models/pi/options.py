"""Values of command-line options. Imports no tensor library."""

from __future__ import annotations

import argparse

from phyai_models.pi.config import MAX_STEPS, STEPS


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def steps(text: str) -> int:
    """A number of Euler steps."""
    value = int(text)
    if not 1 <= value <= MAX_STEPS:
        raise argparse.ArgumentTypeError(f"{value}; {STEPS}")
    return value
