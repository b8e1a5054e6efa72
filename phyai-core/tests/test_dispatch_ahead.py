"""Compiling ahead: what kernels are told of the calls to come, and when."""

from __future__ import annotations

import logging
from typing import Any

import engine_models
import pytest
from fake_calls import CPU, Fake, catalog, dispatcher, gemm_site, kernel, policy, rule, x
from phyai.catalog import Catalog
from phyai.dispatch import Dispatcher
from phyai.engine import Engine, EngineArgs
from phyai.errors import CallError, UndeclaredFactError
from phyai.kernel import Awaited, Band, Param
from phyai.plugins import Plugin, PluginStatus


class Compiler:
    """Keeps what it is called with."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[list[Awaited]] = []
        self.error = error

    def __call__(self, waiting: Any, progress: Any) -> None:
        self.calls.append(list(waiting))
        for done in range(1, len(waiting) + 1):
            progress(done, len(waiting))
        if self.error is not None:
            raise self.error

    @property
    def waiting(self) -> list[Awaited]:
        return [one for call in self.calls for one in call]


def quiet(done: int, total: int) -> None:
    pass


def test_all_sites_are_compiled_for_in_one_call_of_their_compiler() -> None:
    compiler, seen = Compiler(), []
    of = dispatcher(kernel("quick.gemm.a", {"shape.K": "<=64"}, compile=compiler, band=Band.OPTIMIZED),
                    kernel("quick.gemm.b", {"shape.K": ">64"}, compile=compiler, band=Band.OPTIMIZED),
                    kernel("plain.gemm"))  # fmt: skip
    for layer, k in (("l.0", 64), ("l.1", 64), ("l.2", 128)):
        gemm_site(of, layer, k, rows=(1, 8))
    of.compile_ahead(lambda done, total: seen.append((done, total)))
    assert len(compiler.calls) == 1
    assert [(one.kernel.id, one.facts["layer"]) for one in compiler.waiting] == [
        ("quick.gemm.a", "l.0"), ("quick.gemm.a", "l.1"), ("quick.gemm.b", "l.2"),
    ]  # fmt: skip
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_it_is_given_what_prepare_will_be_given() -> None:
    got: list[Any] = []
    compiler = Compiler()

    def prepare(facts: Any, weights: Any, params: Any, resources: Any) -> Any:
        got.append((dict(facts), weights, params, resources.rows))
        return kernel("quick.gemm").prepare(facts, weights, params, resources)  # type: ignore[operator]

    quick = kernel("quick.gemm", compile=compiler, prepare=prepare, params=(Param("depth", "stages"),))
    of = dispatcher(quick, rules=(rule("r", {"op": "gemm"}, params={"depth": 3}),))
    site = gemm_site(of, rows=(50, 400))
    of.compile_ahead(quiet)
    site.run(x(50))
    (one,) = compiler.waiting
    assert [(dict(one.facts), one.weights, one.params, one.rows)] == got
    assert one.rows == (50, 400)
    assert one.params == {"depth": 3}
    with pytest.raises(UndeclaredFactError):
        one.facts["shape.M"]


def test_only_numbers_of_rows_that_come_choose_kernels() -> None:
    for rows, ids in {(1, 64): ["few.gemm"], (65, 99): ["many.gemm"], None: ["few.gemm", "many.gemm"]}.items():
        compiler = Compiler()
        of = dispatcher(kernel("few.gemm", {"shape.M": "<=64"}, compile=compiler),
                        kernel("many.gemm", {"shape.M": ">64"}, compile=compiler))  # fmt: skip
        gemm_site(of, rows=rows)
        of.compile_ahead(quiet)
        assert [one.kernel.id for one in compiler.waiting] == ids


def test_a_kernel_that_is_not_chosen_is_not_compiled() -> None:
    compiler = Compiler()
    of = dispatcher(kernel("quick.gemm", compile=compiler), kernel("better.gemm", band=Band.OPTIMIZED))
    gemm_site(of)
    of.compile_ahead(quiet)
    assert compiler.calls == []


def test_parts_of_a_composite_op_get_their_own_weights_and_rows() -> None:
    compiler = Compiler()
    quick = kernel("quick.gemm", {"shape.M": "<=64"}, compile=compiler)
    of = dispatcher(quick, kernel("slow.gemm", {"shape.M": ">64"}), kernel("plain.act"))
    up, down = Fake((128, 32)), Fake((16, 128))
    of.bind("mlp", layer="mlp", weights={"up": up, "down": down}, dtypes={"x": "bf16"}, rows=(10, 100))
    of.compile_ahead(quiet)
    assert [(one.facts["shape.N"], one.weights["weight"], one.rows) for one in compiler.waiting] == [
        (128, up, (10, 100)), (16, down, (10, 100)),
    ]  # fmt: skip


def test_the_parts_of_a_composite_op_that_runs_fused_are_left_alone() -> None:
    parts, whole = Compiler(), Compiler()
    of = dispatcher(kernel("quick.gemm", compile=parts), kernel("plain.act"),
                    kernel("quick.mlp", compile=whole, band=Band.SPECIALIZED))  # fmt: skip
    of.bind("mlp", weights={"up": Fake((128, 32)), "down": Fake((16, 128))}, dtypes={"x": "bf16"})
    of.compile_ahead(quiet)
    assert parts.calls == []
    assert [one.kernel.id for one in whole.waiting] == ["quick.mlp"]


def test_what_was_prepared_or_frozen_waits_no_more() -> None:
    compiler = Compiler()
    of = dispatcher(kernel("quick.gemm", compile=compiler))
    gemm_site(of).run(x())
    of.compile_ahead(quiet)
    gemm_site(of, "layers.1")
    of.freeze()
    of.compile_ahead(quiet)
    assert compiler.calls == []


def test_a_site_without_a_kernel_for_some_rows_says_so_when_they_come_not_before() -> None:
    compiler = Compiler()
    of = dispatcher(kernel("quick.gemm", {"shape.M": "<=64"}, compile=compiler))
    gemm_site(of)
    of.compile_ahead(quiet)
    assert len(compiler.waiting) == 1


def test_what_does_not_compile_is_logged_and_a_mistake_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    broken = dispatcher(kernel("quick.gemm", compile=Compiler(RuntimeError("ptxas died"))))
    site = gemm_site(broken)
    with caplog.at_level(logging.WARNING, "phyai.dispatch"):
        broken.compile_ahead(quiet)
    assert "quick: compiling ahead failed: RuntimeError: ptxas died" in caplog.text
    assert site.run(x()) == "quick.gemm"
    wrong = dispatcher(kernel("quick.gemm", compile=Compiler(CallError("rows='many'"))))
    gemm_site(wrong)
    with pytest.raises(CallError, match="rows='many'"):
        wrong.compile_ahead(quiet)


def test_a_decision_made_ahead_is_the_one_that_the_call_gets() -> None:
    told: list[Any] = []
    quick = kernel("quick.gemm", compile=Compiler())
    found = catalog(quick)
    observed = Catalog.build([Plugin(PluginStatus("quick"), kernels=(quick,), observe=told.append)], ops=found.ops)
    of = Dispatcher(observed, policy(), CPU)
    site = gemm_site(of, rows=(1, 8))
    of.compile_ahead(quiet)
    assert len(told) == 1
    assert site.run(x()) == "quick.gemm"
    assert len(told) == 1
    assert [decision.facts["shape.M"] for decision in site.decisions] == [5]


def test_an_engine_compiles_once_its_model_is_loaded() -> None:
    compiler = Compiler()
    quick = Plugin(PluginStatus("quick"), kernels=(kernel("quick.layer_norm", compile=compiler),))
    echo = Plugin(PluginStatus("echo", "phyai.models"), models=(engine_models.NORM,))
    with Engine(EngineArgs("norm", engine_models.EchoArgs()), policy=policy(), catalog=Catalog.build([quick, echo])):
        assert [one.kernel.id for one in compiler.waiting] == ["quick.layer_norm"]
