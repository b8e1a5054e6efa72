"""The table of an engine's decisions."""

from __future__ import annotations

from fake_calls import CPU, catalog, facts, kernel, policy
from phyai.dispatch import Report
from phyai.dispatch.report import SiteReport
from phyai.engine.decisions import COLUMNS, cells, decision_rows
from phyai.resolver import resolve


def decided(role, layer, kernels=("one.gemm",)):
    made = catalog(*(kernel(name) for name in kernels))
    return resolve(facts(role=role, layer=layer), made, policy(), CPU)


def site(name, *decisions):
    return SiteReport(name, "gemm", False, False, decisions)


def test_sites_that_were_decided_alike_share_a_row():
    report = Report(
        (site("a", decided("expert", "a")), site("b", decided("vision", "b")), site("c", decided("expert", "c"))), ()
    )
    rows = decision_rows(report)
    assert [(row.role, row.kernel, row.calls, row.layer) for row in rows] == [
        ("expert", "one.gemm", 2, "a"),
        ("vision", "one.gemm", 1, "b"),
    ]
    assert all(row.why for row in rows)


def test_a_site_counts_once_in_each_kernel_that_it_got():
    both = site("a", decided("expert", "a"), decided("expert", "a"), decided("expert", "a", ("two.gemm",)))
    assert [(row.kernel, row.calls) for row in decision_rows(Report((both,), ()))] == [("one.gemm", 1), ("two.gemm", 1)]


def test_a_site_that_was_never_called_has_no_row():
    assert decision_rows(Report((site("a"),), ())) == []


def test_rows_as_text_and_as_data():
    (row,) = decision_rows(Report((site("a", decided("expert", "a")),), ()))
    assert len(cells(row)) == len(COLUMNS)
    assert row.to_json()["kernel"] == "one.gemm"
