"""What was measured: of one kind of call, on one machine, every candidate's timings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import attrs

from phyai.errors import PhyAIError
from phyai.facts import FactValue
from phyai.tune.stats import bounds, median, noise


class TuneError(PhyAIError, RuntimeError):
    """Tuning, or its store, was asked for something that it cannot do."""


#: How candidates were timed: by a CPU's clock, by replaying a CUDA graph, eagerly on a CUDA stream, or as whole steps
#: of the running model in which only this kernel changed.
METHODS = ("cpu", "graph", "eager", "live")


@attrs.frozen
class Result:
    """One candidate's timings in seconds per call (of method ``live``: per step of the model).

    ``problem`` says why it was disqualified: it raised, crashed, hung, gave NaN or other numbers than the incumbent.
    ``stopped``: it was hopeless, so that there are few samples. ``source`` is the version and the hash of its code.
    """

    samples: tuple[float, ...] = ()
    problem: str | None = None
    stopped: bool = False
    source: str = ""

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def noise(self) -> float:
        """The uncertainty of the median, as a part of it."""
        return noise(self.samples)

    @property
    def bounds(self) -> tuple[float, float]:
        return bounds(self.samples)

    def shown(self) -> str:
        """The timing in words.

        >>> Result((2.0e-6, 2.1e-6, 2.2e-6)).shown(), Result(problem="gave NaN").shown()
        ('2.10 µs ±4.8%', 'gave NaN')
        """
        if self.problem is not None or not self.samples:
            return self.problem or "not timed"
        return f"{seconds(self.median)} ±{100 * self.noise:.1f}%"

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"samples": list(self.samples), "source": self.source}
        if self.problem is not None:
            data["problem"] = self.problem
        if self.stopped:
            data["stopped"] = True
        return data

    @classmethod
    def from_json(cls, data: Any) -> Result:
        samples = tuple(float(sample) for sample in data["samples"])
        if not all(0 < sample < float("inf") for sample in samples):
            raise ValueError("a timing is not a positive number")
        return cls(samples, _text(data.get("problem")), data.get("stopped") is True, _text(data["source"]) or "")


@attrs.frozen
class Measurement:
    """All candidates of one kind of call, timed in one go.

    ``key`` is the text under which the store files it; ``op``, ``facts`` (static ones; None: absent) and ``bucket``
    (dynamic dimensions, from lowest to highest) say the same in parts. ``at`` are the dimensions that were measured,
    ``when`` the time in UTC, ``stamp`` the machine, ``incumbent`` the kernel that was in place without tuning.
    """

    key: str
    op: str
    facts: Mapping[str, FactValue | None]
    bucket: Mapping[str, tuple[int, int]]
    at: Mapping[str, int]
    when: str
    method: str = attrs.field(validator=attrs.validators.in_(METHODS))
    stamp: Mapping[str, str]
    incumbent: str
    results: Mapping[str, Result]
    calls: int = 1

    def usable(self) -> dict[str, Result]:
        """The candidates that were timed and not disqualified."""
        return {id: result for id, result in self.results.items() if result.problem is None and result.samples}

    def to_json(self) -> dict[str, Any]:
        facts = {name: sorted(v) if isinstance(v, frozenset) else v for name, v in sorted(self.facts.items())}
        return {
            "key": self.key,
            "op": self.op,
            "facts": facts,
            "bucket": {name: list(edges) for name, edges in sorted(self.bucket.items())},
            "at": dict(sorted(self.at.items())),
            "when": self.when,
            "method": self.method,
            "calls": self.calls,
            "stamp": dict(sorted(self.stamp.items())),
            "incumbent": self.incumbent,
            "results": {id: result.to_json() for id, result in sorted(self.results.items())},
        }

    @classmethod
    def from_json(cls, data: Any) -> Measurement:
        """What :meth:`to_json` wrote.

        Raises:
            TuneError: the data is something else.
        """
        try:
            return cls(
                key=str(data["key"]),
                op=str(data["op"]),
                facts={str(name): _fact(value) for name, value in dict(data["facts"]).items()},
                bucket={str(name): (int(low), int(high)) for name, (low, high) in dict(data["bucket"]).items()},
                at={str(name): int(size) for name, size in dict(data["at"]).items()},
                when=str(data["when"]),
                method=str(data["method"]),
                stamp={str(name): str(value) for name, value in dict(data["stamp"]).items()},
                incumbent=str(data["incumbent"]),
                results={str(id): Result.from_json(result) for id, result in dict(data["results"]).items()},
                calls=int(data["calls"]),
            )
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
            raise TuneError(f"no measurement can be read: {type(error).__name__}: {error}") from None

    def order(self) -> tuple[str, str]:
        """What measurements of one key are sorted by: when they were made, then all that they say."""
        return self.when, json.dumps(self.to_json(), sort_keys=True)


def seconds(value: float) -> str:
    """A duration as people read it.

    >>> seconds(2.5e-6), seconds(1.25e-3), seconds(3.0), seconds(4e-8)
    ('2.50 µs', '1.25 ms', '3.00 s', '40 ns')
    """
    if value >= 1:
        return f"{value:.2f} s"
    if value >= 1e-3:
        return f"{value * 1e3:.2f} ms"
    return f"{value * 1e6:.2f} µs" if value >= 1e-6 else f"{value * 1e9:.0f} ns"


def _fact(value: Any) -> FactValue | None:
    if isinstance(value, list):
        return frozenset(map(str, value))
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{value!r:.40} is no fact")


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{value!r:.40} is no text")
