"""Every kernel of this distribution does what it declares: see ``phyai conformance reference`` for longer runs."""

from __future__ import annotations

import pytest
from phyai.environment import Environment
from phyai.plugins import discover
from phyai.testing import Outcome
from phyai.testing.conformance import examine_record, kernels_of, plugins_of

pytest.importorskip("hypothesis", reason="the kit draws calls with it")

CATALOG = discover(env={})
HERE = Environment.detect("cpu", libraries=CATALOG.libraries)
KERNELS = [*kernels_of("reference", CATALOG), *kernels_of("torch", CATALOG), *kernels_of("decomposed", CATALOG)]
#: About; every check is made at least once, whatever it takes.
SECONDS = 1.0


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.id)
def test_a_kernel_does_what_it_declares(kernel):
    report = examine_record(kernel, kernel.backend, CATALOG, HERE, seconds=SECONDS)
    failed = [check for check in report.checks if check.outcome is Outcome.FAILED]
    failures = [f"{check.name}: {check.reason}\n{check.line}" for check in failed]
    assert not failures, "\n".join(failures)
    if report.outcome is Outcome.SKIPPED:
        pytest.skip(report.reason)
    assert report.calls >= 4


def test_declaring_them_imports_nothing_heavy():
    (status,) = plugins_of(kernels_of("reference", CATALOG), CATALOG)
    report = examine_record(status, "reference", CATALOG, HERE, seconds=SECONDS)
    assert report.outcome is Outcome.PASSED, report.checks[0].reason
