"""A kernel that cannot be prepared, and what is told of calls that only the reference is left for."""

from __future__ import annotations

import logging

import pytest
from fake_calls import dispatcher, gemm_site, kernel, rule, x
from phyai.decision import Stage
from phyai.errors import NoKernelError
from phyai.kernel import Band, Prepared

OPT = Band.OPTIMIZED


def failing(id, message="no such library", **more):
    def prepare(facts, weights, params, resources):
        raise ImportError(message)

    return kernel(id, prepare=prepare, **more)


def test_a_failing_prepare_is_part_of_the_decision_and_logged_once(caplog):
    made = dispatcher(failing("a.gemm", band=OPT), kernel("b.gemm"))
    with caplog.at_level(logging.WARNING, "phyai.dispatch"):
        for layer in ("one", "two"):
            assert gemm_site(made, layer).run(x()) == "b.gemm"
    assert [r.getMessage() for r in caplog.records] == ["a.gemm: prepare failed: ImportError: no such library"]
    decision = made.sites[0].decisions[0]
    lost = next(c for c in decision.rejected if c.kernel == "a.gemm")
    assert (lost.stage, lost.reason) == (Stage.PREPARE, "prepare failed: ImportError: no such library")
    assert decision.warnings


def references():
    """Two ops with reference kernels alone, on a device that another backend serves."""
    return dispatcher(
        *(kernel(id, band=Band.REFERENCE) for id in ("r.gemm", "r.act")), kernel("t.gemm", {"shape.K": "%128"})
    )


def act_site(made):
    return made.bind("act", dtypes={"x": "bf16"}, dims={"D": 64})


GEMM_LEFT, ACT_LEFT = (f"{op}: only r.{op} is left, although t serves this device" for op in ("gemm", "act"))


def test_an_op_of_which_only_the_reference_is_left_is_told_once(caplog):
    made = references()
    for site in (gemm_site(made, "one"), gemm_site(made, "two"), act_site(made)):
        site.run(x())
    assert [r.getMessage() for r in caplog.records] == [GEMM_LEFT, ACT_LEFT]


def test_told_together_they_are_one_line_and_what_is_new_another(caplog):
    made = references()
    with made.telling_together():
        with made.telling_together():
            gemm_site(made, "one").run(x())
        act_site(made).run(x())
        assert caplog.records == []
    assert [r.getMessage() for r in caplog.records] == [
        "only reference kernels are left for act, gemm, although t serves this device; `phyai explain --op OP` says why"
    ]
    caplog.clear()
    with made.telling_together():
        gemm_site(made, "two").run(x())
        act_site(made).run(x())
    assert caplog.records == []
    made = references()
    with made.telling_together():
        act_site(made).run(x())
    assert [r.getMessage() for r in caplog.records] == [ACT_LEFT]


def test_told_together_other_warnings_are_told_at_once_and_all_of_them_where_the_block_raises(caplog):
    made = references()
    with pytest.raises(ZeroDivisionError), made.telling_together():  # noqa: PT012
        gemm_site(made).run(x())
        act_site(made).run(x())
        raise ZeroDivisionError
    assert len(caplog.records) == 1
    caplog.clear()
    made = dispatcher(failing("a.gemm", band=OPT), kernel("b.gemm"))
    with made.telling_together():
        gemm_site(made).run(x())
        assert "a.gemm: prepare failed" in caplog.text


def test_a_pinned_kernel_whose_prepare_fails_is_an_error():
    rules = [rule("p", {"op": "gemm"}, pin="a.gemm")]
    site = gemm_site(dispatcher(failing("a.gemm"), kernel("b.gemm"), rules=rules))
    with pytest.raises(NoKernelError, match=r"a\.gemm: \[prepare\] prepare failed: ImportError"):
        site.run(x())


def test_a_kernel_that_fails_for_some_specializations_serves_the_others():
    def prepare(facts, weights, params, resources):
        if facts["shape.M"] == 7:
            raise RuntimeError("no tile for 7")
        return Prepared(run=lambda x, out=None, state=None: "a.gemm")

    a = kernel("a.gemm", prepare=prepare, band=OPT, specializes_on=("shape.M",))
    site = gemm_site(dispatcher(a, kernel("b.gemm")))
    assert [site.run(x(m)) for m in (5, 7, 6, 7)] == ["a.gemm", "b.gemm", "a.gemm", "b.gemm"]


def test_a_module_that_is_not_there_is_a_failed_prepare():
    site = gemm_site(dispatcher(kernel("a.gemm", prepare="no_such_module:prepare", band=OPT), kernel("b.gemm")))
    assert site.run(x()) == "b.gemm"


class OutOfMemoryError(RuntimeError):
    """Named as torch's is."""


@pytest.mark.parametrize(
    "error", [OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("CUDA error: out of memory")]
)
def test_memory_that_runs_out_in_prepare_is_raised_and_counts_against_no_kernel(error):
    short = [error]

    def prepare(facts, weights, params, resources):
        if short:
            raise short.pop()
        return Prepared(run=lambda x, out=None, state=None: "a.gemm")

    site = gemm_site(dispatcher(kernel("a.gemm", prepare=prepare, band=OPT), kernel("b.gemm")))
    with pytest.raises(type(error)) as caught:
        site.run(x())
    assert caught.value is error
    assert site.run(x()) == "a.gemm"
    assert site.decisions[0].warnings == ()
