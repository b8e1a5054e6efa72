"""Rules that contradict each other, found when a file is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phyai.catalog import Catalog
from phyai.policy._model import Rule
from phyai.policy._problems import Report


def find_conflicts(
    rules: Sequence[Rule], ops: Mapping[str, frozenset[str] | None], catalog: Catalog, report: Report
) -> None:
    return
