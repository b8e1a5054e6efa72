"""Values of command-line options. Imports no tensor library."""

from __future__ import annotations

import argparse
import math

from phyai_models.pi.config import MAX_STEPS, STEPS


def count(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def seconds(text: str) -> float:
    """A time that is longer than none."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number of seconds")
    return value


def steps(text: str) -> int:
    """A number of Euler steps."""
    value = int(text)
    if not 1 <= value <= MAX_STEPS:
        raise argparse.ArgumentTypeError(f"{value}; {STEPS}")
    return value
