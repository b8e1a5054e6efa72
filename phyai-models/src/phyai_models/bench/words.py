"""What a benchmark's record says about floors and ceilings, for tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ceilings_in_words(ceilings: Mapping[str, Any]) -> str:
    """The ceilings of a record.

    >>> given = {"tflops": {"bf16": 805.0, "int8": 1500.0}, "tb_per_s": 4.435, "not_measured": {"int4": "no product"}}
    >>> ceilings_in_words(given)
    'bf16 805 TFLOP/s, int8 1500 TOP/s, memory 4.43 TB/s; int4 not measured: no product'
    """
    rates = [f"{t} {_figures(rate)} {'TOP' if 'int' in t else 'TFLOP'}/s" for t, rate in ceilings["tflops"].items()]
    known = ", ".join((*rates, f"memory {_figures(ceilings['tb_per_s'])} TB/s"))
    return "; ".join((known, *(f"{t} not measured: {why}" for t, why in ceilings["not_measured"].items())))


def floor_in_words(stage: Mapping[str, Any], ceilings: Mapping[str, Any]) -> str:
    """The floor of a stage of a record, and its ceiling.

    >>> floor_in_words({"floor": 3.104, "ceilings": ("fp8_e4m3", "bf16")}, {"not_measured": {}})
    'floor 3.10 ms (fp8_e4m3, bf16)'
    >>> floor_in_words({"floor": None, "ceilings": ("int4", "bf16")}, {"not_measured": {"int4": "no product"}})
    'no floor: int4 not measured'
    """
    if stage["floor"] is not None:
        return f"floor {stage['floor']:.2f} ms ({', '.join(stage['ceilings'])})"
    return f"no floor: {', '.join(t for t in stage['ceilings'] if t in ceilings['not_measured'])} not measured"


def memory_in_words(memory: Mapping[str, int | None]) -> str:
    """What lies on the device, of a record.

    >>> memory_in_words({"parameters": 6_496_000_000, "cache": 19_000_000, "recordings": 1, "reserved": None})
    'parameters 6496 MB, cache 19 MB'
    """
    sizes = {name: size for name, size in memory.items() if name != "recordings"}
    return ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items() if size is not None)


def or_dash(value: float | None, form: str, unit: float = 1.0) -> str:
    """A number in units of ``1 / unit``; a dash for one that is not known.

    >>> or_dash(0.25, ".0%"), or_dash(1500.0, ".2f", 1e-3), or_dash(None, ".2f")
    ('25%', '1.50', '–')
    """
    return "–" if value is None else format(value * unit, form)


def _figures(value: float) -> str:
    """Three figures, all of those before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
