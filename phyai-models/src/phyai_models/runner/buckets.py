"""Buckets: the few lengths that variable ones are padded to."""

from __future__ import annotations

from collections.abc import Sequence


def buckets_up_to(limit: int, buckets: Sequence[int]) -> tuple[int, ...]:
    """``buckets`` below ``limit``, and ``limit`` itself, so that whatever a model accepts has a bucket.

    >>> buckets_up_to(200, (16, 48, 112, 200, 400)), buckets_up_to(48, (16, 32))
    ((16, 48, 112, 200), (16, 32, 48))
    """
    return (*(size for size in buckets if size < limit), limit)


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """The smallest of the ascending ``buckets`` that holds ``length``.

    >>> bucket_of(17, (16, 48)), bucket_of(0, (16, 48))
    (48, 16)
    """
    return next(size for size in buckets if size >= length)
