"""What a handful of timings say: the median, an interval that holds the true median, and when a win is real.

The interval comes from order statistics and assumes nothing of the distribution: of n independent samples, the k-th
smallest and the k-th largest enclose the median with probability ``1 - 2 P(Binomial(n, 1/2) < k)`` (David and
Nagaraja, *Order Statistics*, 7.1).

>>> low, high = bounds([5, 1, 4, 2, 3, 9, 8, 7, 6])
>>> low, median([5, 1, 4, 2, 3, 9, 8, 7, 6]), high
(2, 5, 8)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

#: How sure an interval is at least, where there are samples enough (six).
CONFIDENCE = 0.95

#: A win must be larger than this part of the incumbent's time, beside being outside both intervals: what differs from
#: one process to the next (clocks, placement of memory) does not show within one measurement.
MARGIN = 0.02


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two in the middle.

    >>> median([3.0, 1.0, 2.0]), median([4.0, 1.0])
    (2.0, 2.5)
    """
    ranked = sorted(samples)
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


@functools.cache
def rank(n: int) -> int:
    """The largest k for which the k-th smallest and k-th largest of n samples hold the median with :data:`CONFIDENCE`.

    1 where there are too few samples for that: the interval is then all that was seen.

    >>> rank(5), rank(6), rank(15)
    (1, 1, 4)
    """
    below, k = 0.0, 0
    while 2 * (below + math.comb(n, k) / 2**n) <= 1 - CONFIDENCE:
        below += math.comb(n, k) / 2**n
        k += 1
    return max(k, 1)


def bounds(samples: Sequence[float]) -> tuple[float, float]:
    """The interval that holds the true median."""
    ranked = sorted(samples)
    k = rank(len(ranked))
    return ranked[k - 1], ranked[-k]


def noise(samples: Sequence[float]) -> float:
    """Half the interval's width as a part of the median: what ``±`` shows.

    >>> noise([1.0, 1.0, 1.0]), noise([0.9, 1.0, 1.1])
    (0.0, 0.1)
    """
    low, high = bounds(samples)
    return round((high - low) / 2 / median(samples), 6)


def beats(challenger: Sequence[float], incumbent: Sequence[float], *, margin: float = MARGIN) -> bool:
    """Whether the challenger is faster beyond the noise: its interval ends below the incumbent's, by ``margin``.

    >>> beats([1.0, 1.1, 1.2], [1.5, 1.6, 1.7]), beats([1.0, 1.1, 1.55], [1.5, 1.6, 1.7])
    (True, False)
    >>> beats([1.48], [1.5]), beats([1.46], [1.5])
    (False, True)
    """
    return bounds(challenger)[1] < bounds(incumbent)[0] * (1 - margin)
