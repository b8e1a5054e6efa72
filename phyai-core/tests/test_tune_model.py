"""Tuning what a model calls: recorded from its sites, timed beside it and inside it, put into its dispatcher."""

from __future__ import annotations

import attrs
import pytest
from phyai.dispatch import Dispatcher
from phyai.kernel import Band
from phyai.policy import Policy
from phyai.predicates import match
from phyai.tune import Store, recording, tune_model
from phyai.tune.live import measure_live
from phyai.tune.measure import Settings
from tune_world import CPU, Clock, catalog, measurer, timed

torch = pytest.importorskip("torch", reason="tensors are torch's")

OPT = Band.OPTIMIZED


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def world(clock):
    return catalog(timed("a.activation", clock, 3e-6, band=OPT), timed("b.activation", clock, 1e-6))


class Model:
    """Three activations: two of one kind, one of another role; each step calls them at two sizes."""

    def __init__(self, world, policy=None):
        self.dispatcher = Dispatcher(world, policy or Policy(), CPU)
        self.sites = [self.bind("expert", "l.0"), self.bind("expert", "l.1"), self.bind("vision", "v.0")]

    def bind(self, role, layer):
        return self.dispatcher.bind(
            "activation", role=role, layer=layer, dtypes={"x": "fp32"}, dims={"D": 16}, attrs={"activation": "silu"}
        )

    def step(self, m=8):
        for site in self.sites[:2]:
            site.run(torch.zeros(m, 16))
            site.run(torch.zeros(100, 16))
        self.sites[2].run(torch.zeros(256, 16))

    def chosen(self, site, m):
        return self.sites[site].decide(M=m).kernel.id


# Recording


def test_the_calls_of_all_sites_are_recorded_once_for_each_kind(world):
    model = Model(world)
    with recording(model.dispatcher) as seen:
        model.step(7)
        model.step(8)
    tasks = {(t.case.facts["role"], t.case.dims["M"]): t for t in seen.tasks(world, CPU)}
    assert set(tasks) == {("expert", 8), ("expert", 100), ("vision", 256)}  # 7 and 8 are of one bucket: the larger
    assert tasks["expert", 8].sites == ("l.0:activation", "l.1:activation")


def test_calls_that_sites_knew_already_are_recorded_too(world):
    model = Model(world)
    model.step()
    with recording(model.dispatcher) as seen:
        model.step()
    assert len(seen.tasks(world, CPU)) == 3
    model.step(1)
    assert len(seen.tasks(world, CPU)) == 3  # and none afterwards


def test_a_recorded_call_has_the_facts_of_its_site(world):
    model = Model(world)
    with recording(model.dispatcher) as seen:
        model.step()
    for site, facts in seen.each():
        without_layer = facts.replace({"layer": None})
        assert seen.task_of(site, facts).facts(world, CPU) == without_layer


@pytest.mark.parametrize("op", ["gemm", "attention_paged", "rope", "conv2d", "ada_rms_norm", "embedding", "gated_mlp"])
def test_the_calls_of_every_sort_of_op_can_be_recorded_and_made_again(op):
    pytest.importorskip("phyai_backend_reference")
    from phyai.environment import Environment
    from phyai.plugins import discover
    from phyai.policy import default_policy
    from phyai.testing.bench import make_call
    from phyai.testing.case import Case
    from phyai.testing.subject import bind

    world = discover({})
    environment = Environment.detect("cpu", libraries=world.libraries)
    spec = next(s for s in world.op(op).arg_specs if s.name.startswith("small."))
    call = make_call(world.op(op), Case.of(world.op(op), spec), "cpu")
    bound = bind(world, default_policy(), environment, call)
    with recording(bound.dispatcher) as seen:
        bound.run(call)
    task = next(t for t in seen.tasks(world, environment) if t.op == op)
    made = make_call(world.op(op), task.case, "cpu")
    shapes = {name: None if t is None else tuple(t.shape) for name, t in call.inputs.items()}
    assert {name: None if t is None else tuple(t.shape) for name, t in made.inputs.items()} == shapes
    assert {n: tuple(w.shape) for n, w in made.weights.items()} == {n: tuple(w.shape) for n, w in call.weights.items()}


# Tuning a model


def test_a_call_of_the_models_own_layers_is_not_measured_outside_it():
    """There its decomposition cannot be prepared, and the reference would win against nobody."""
    pytest.importorskip("phyai_backend_reference")
    from phyai.environment import Environment
    from phyai.plugins import discover
    from phyai.policy import default_policy
    from phyai.tune import InProcess, op_tasks, tune

    world = discover({})
    environment = Environment.detect("cpu", libraries=world.libraries)
    tasks = op_tasks("expert_steps", world)
    outcome = tune(tasks, world, default_policy(), environment, InProcess(world, environment))
    assert tasks
    assert outcome.measured == ()
    assert outcome.layer.rules == ()
    assert all("outside the model" in why for why in outcome.skipped.values())


def test_a_model_is_tuned_and_its_dispatcher_uses_the_result(world, clock, tmp_path):
    model = Model(world)
    store = Store(tmp_path / "s.json")
    outcome = tune_model(model.dispatcher, model.step, measurer(world, clock), store=store)
    assert len(outcome.measured) == 3
    assert {model.chosen(0, 8), model.chosen(1, 100), model.chosen(2, 256)} == {"b.activation"}
    assert model.chosen(0, 30) == "a.activation"  # a size that no call had
    again = tune_model(Model(world).dispatcher, lambda: None, measurer(world, clock), store=store)
    assert again.measured == ()


def test_tuning_a_model_leaves_the_rest_of_its_policy(world, clock):
    from phyai.policy import Layer, Rule

    mine = Rule("mine", match({"role": "vision"}), prefer=("a.activation",))
    model = Model(world, Policy(rules=(mine,), profile="autotune"))
    tune_model(model.dispatcher, model.step, measurer(world, clock))
    assert (model.chosen(0, 8), model.chosen(2, 256)) == ("b.activation", "a.activation")
    rules = [rule for rule in model.dispatcher.policy.rules if rule.layer is not Layer.TUNING]
    assert (rules, model.dispatcher.policy.profile) == ([mine], "autotune")


# Timing inside the model


def test_only_the_calls_in_question_change_their_kernel_and_whole_steps_are_timed(world, clock):
    model = Model(world)
    with recording(model.dispatcher) as seen:
        model.step()
    calls = {
        site: [f for f in found if f["shape.M"] == 100] for site, found in seen.calls.items() if site.name[0] == "l"
    }
    results = measure_live(
        model.dispatcher, calls, ["a.activation", "b.activation"], model.step, settings=Settings(4, 3), clock=clock
    )
    # five calls a step: all by a, or the two at M = 100 by b
    assert results["a.activation"].median == pytest.approx(5 * 3e-6)
    assert results["b.activation"].median == pytest.approx(3 * 3e-6 + 2 * 1e-6)
    assert model.chosen(0, 100) == "a.activation"  # put back


def test_a_candidate_that_fails_inside_the_model_is_recorded_and_the_rest_put_back(world, clock):
    def breaks(x, out=None, state=None):
        raise RuntimeError("out of shared memory")

    from tune_world import kernel

    more = catalog(
        *(k for k in world.kernels if k.op == "activation"), kernel("c.activation", breaks, band=Band.REFERENCE)
    )
    model = Model(more)
    with recording(model.dispatcher) as seen:
        model.step()
    ids = ["a.activation", "c.activation"]
    results = measure_live(model.dispatcher, seen.calls, ids, model.step, settings=Settings(3, 3), clock=clock)
    assert results["c.activation"].problem == "RuntimeError: out of shared memory"
    assert results["a.activation"].samples
    model.step()


def test_a_candidate_may_ask_for_a_workspace_in_a_model_whose_dispatcher_is_frozen(world, clock):
    plain = timed("c.activation", clock, 2e-6, band=Band.REFERENCE)

    def prepare(facts, weights, params, resources):
        resources.workspace("scratch", 64)
        return plain.prepare(facts, weights, params, resources)

    candidate = attrs.evolve(plain, prepare=prepare)
    model = Model(catalog(*(k for k in world.kernels if k.op == "activation"), candidate))
    with recording(model.dispatcher) as seen:
        model.step()
    model.dispatcher.freeze()
    ids = ["a.activation", "c.activation"]
    results = measure_live(model.dispatcher, seen.calls, ids, model.step, settings=Settings(3, 3), clock=clock)
    assert results["c.activation"].median == pytest.approx(5 * 2e-6)


def test_a_budget_that_ends_inside_the_model_leaves_the_call_out_and_puts_all_back(world, clock):
    model = Model(world)
    with recording(model.dispatcher) as seen:
        model.step()
    ids = ["b.activation", "a.activation"]
    assert measure_live(model.dispatcher, seen.calls, ids, model.step, clock=clock, deadline=0.0) is None
    assert model.chosen(0, 8) == "a.activation"


def test_a_runner_that_captures_graphs_is_told_of_every_change(world, clock):
    model = Model(world)
    epochs = []

    def step():
        epochs.append(model.dispatcher.epoch)
        model.step()

    with recording(model.dispatcher) as seen:
        step()
    ids = ["a.activation", "b.activation"]
    measure_live(model.dispatcher, seen.calls, ids, step, settings=Settings(3, 3), clock=clock)
    visits = epochs[1::2]
    assert len(set(visits)) == len(visits) == 6


def test_what_was_timed_in_the_model_counts_before_what_was_timed_beside_it(world, clock, monkeypatch):
    monkeypatch.setattr("phyai.tune.model.LIVE_OPS", ("activation",))
    monkeypatch.setattr("phyai.tune.model.measure_live", lambda d, calls, kernels, step, deadline: measured(kernels))

    def measured(kernels):
        from phyai.tune import Result

        return {id: Result((1e-3,) * 9 if id == "a.activation" else (2e-3,) * 9) for id in kernels}

    model = Model(world)
    outcome = tune_model(model.dispatcher, model.step, measurer(world, clock))
    assert {chosen.measurement.method for chosen in outcome.layer.chosen} == {"live"}
    assert model.chosen(0, 8) == "a.activation"
    assert {m.method for m in outcome.measured} == {"cpu", "live"}


# The engine


@pytest.fixture
def engine_catalog(world):
    from phyai.engine import ModelPlugin
    from phyai.plugins import Plugin, PluginStatus

    plugin = ModelPlugin("acts", "", "tune_engine:Args", "tune_engine:load", example="tune_engine:example")
    return attrs.evolve(world, models=(*world.models, plugin), plugins=(*world.plugins, PluginStatus("acts"))), Plugin


def test_the_profile_has_the_first_request_tuned_for(engine_catalog, clock, tmp_path, monkeypatch):
    from phyai.engine import Engine, EngineArgs
    from tune_engine import Args

    found, _ = engine_catalog
    monkeypatch.setenv("PHYAI_KERNEL_TUNE_DIR", str(tmp_path))
    monkeypatch.setattr("phyai.tune.Isolated", lambda catalog, environment: measurer(catalog, clock))
    for profile, kernel in (("static", "a.activation"), ("autotune", "b.activation")):
        with Engine(EngineArgs("acts", Args()), policy=Policy(profile=profile), catalog=found) as engine:
            assert engine.step(8) == 8
            (site,) = engine.dispatcher.sites
            assert site.decide(M=8).kernel.id == kernel
    with Engine(EngineArgs("acts", Args()), policy=Policy(profile="autotune"), catalog=found) as engine:
        (site,) = engine.dispatcher.sites
        assert site.decide(M=8).decided_by == "tuning"  # from the store, before any request


def test_an_engine_tunes_with_the_models_own_example(engine_catalog, clock, tmp_path, monkeypatch):
    from phyai.engine import Engine, EngineArgs
    from tune_engine import Args

    found, _ = engine_catalog
    with Engine(EngineArgs("acts", Args()), policy=Policy(), catalog=found) as engine:
        outcome = engine.tune(measurer=measurer(found, clock), store=Store(tmp_path / "s.json"))
        assert [m.at["M"] for m in outcome.measured] == [64]


def test_the_first_request_says_that_it_waits_for_tuning_and_where_the_results_go(
    engine_catalog, clock, tmp_path, monkeypatch, caplog
):
    from phyai.engine import Engine, EngineArgs
    from tune_engine import Args

    found, _ = engine_catalog
    monkeypatch.setenv("PHYAI_KERNEL_TUNE_DIR", str(tmp_path))
    monkeypatch.setattr("phyai.tune.Isolated", lambda catalog, environment: measurer(catalog, clock))
    with Engine(EngineArgs("acts", Args()), policy=Policy(profile="autotune"), catalog=found) as engine:
        caplog.clear()
        engine.step(8)
        start, end = (record.getMessage() for record in caplog.records if record.name == "phyai.engine")
        caplog.clear()
        engine.step(8)
    (store,) = tmp_path.glob("*.json")
    assert "at most about 60 s" in start
    assert str(store) in start
    assert "measured: 1, known: 0" in end
    assert not caplog.records


@pytest.mark.parametrize("terminal", [True, False])
def test_tuning_shows_a_bar_on_a_terminal_only(terminal, engine_catalog, clock, tmp_path, monkeypatch):
    import io

    from phyai.engine import Engine, EngineArgs
    from tune_engine import Args

    class Stream(io.StringIO):
        def isatty(self):
            return terminal

    shown = Stream()
    monkeypatch.setattr("sys.stderr", shown)
    for name, value in {"TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    found, _ = engine_catalog
    with Engine(EngineArgs("acts", Args()), policy=Policy(), catalog=found) as engine:
        engine.tune(measurer=measurer(found, clock), store=Store(tmp_path / "s.json"))
    assert ("tuning" in shown.getvalue()) is terminal
    assert terminal or shown.getvalue() == ""


def test_a_caller_that_is_told_of_the_progress_gets_no_bar(engine_catalog, clock, tmp_path, monkeypatch):
    from phyai.engine import Engine, EngineArgs
    from tune_engine import Args

    def no_bar(title):
        raise AssertionError(title)

    monkeypatch.setattr("phyai.bars.bar", no_bar)
    found, _ = engine_catalog
    seen = []
    with Engine(EngineArgs("acts", Args()), policy=Policy(), catalog=found) as engine:
        engine.tune(
            measurer=measurer(found, clock), store=Store(tmp_path / "s.json"),
            progress=lambda done, total, what: seen.append((done, total)),
        )  # fmt: skip
    assert seen[-1] == (1, 1)
