"""Measuring in another process: candidates that crash or hang take it down, and nothing else."""

from __future__ import annotations

import time

import attrs
import pytest
from phyai.policy import Defaults, Layer, NumericsDemand, Policy, Restriction, Rule
from phyai.predicates import match
from phyai.tune import Isolated, Settings, TuneError, tune
from phyai.tune.worker import policy_of, policy_texts
from tune_world import CPU, faulty_catalog, task

torch = pytest.importorskip("torch", reason="tensors are torch's")

QUICK = Settings(rounds=3, trial=3)


def isolated(**more):
    return Isolated(faulty_catalog(), CPU, QUICK, "tune_world:faulty_catalog", **more)


def test_crashing_hanging_and_wrong_candidates_are_recorded_and_the_others_measured():
    world = faulty_catalog()
    with isolated(patience=8.0) as measurer:
        outcome = tune([task()], world, Policy(), CPU, measurer)
    failures = {id.rpartition(".")[2]: why.partition(": ")[2] for id, why in outcome.failures.items()}
    assert failures["crash"] == "crashed: its process was ended by SIGABRT (while it was at 'run')"
    assert failures["hang"] == "hangs: it said nothing for 8 s (while it was at 'run')"
    assert failures["nan"] == "y holds NaN for ordinary inputs"
    assert failures["wrong"].startswith("other numbers than the incumbent's")
    assert failures["raise"] == "ValueError: no such tile"
    (chosen,) = outcome.layer.chosen
    assert set(chosen.choice.ranking) == {"good.activation", "faulty.activation.talks"}
    assert all(len(result.samples) == 3 for result in chosen.measurement.usable().values())


def test_a_worker_that_cannot_start_says_why():
    with (
        Isolated(faulty_catalog(), CPU, QUICK, "tune_world:broken_catalog") as measurer,
        pytest.raises(TuneError, match=r"(?s)ended with status 1.*the plug-ins cannot be loaded"),
    ):
        measurer.measure(task(), ["good.activation"], Policy())


def test_a_candidate_that_hangs_does_not_outlast_the_budget():
    with isolated() as measurer:
        measurer.measure(task(), ["good.activation"], Policy())  # started, so that the budget is for measuring
        started = time.monotonic()
        got = measurer.measure(task(), ["good.activation", "faulty.activation.hang"], Policy(), deadline=started + 1)
        assert got.results is None
        assert time.monotonic() - started < 20
        again = measurer.measure(task(), ["good.activation"], Policy())
        assert again.results["good.activation"].samples


def installed():
    pytest.importorskip("phyai_backend_reference")
    from phyai.environment import Environment
    from phyai.plugins import discover

    world = discover({})
    return world, Environment.detect("cpu", libraries=world.libraries)


def test_installed_backends_are_measured_end_to_end_in_another_process(tmp_path):
    from phyai.policy import default_policy
    from phyai.tune import Store, op_tasks

    world, environment = installed()
    tasks = [t for t in op_tasks("gemm", world) if t.sites[0] in ("pi05.head.action_out", "pi0.head.state")]
    store = Store(tmp_path / "cpu.json")
    with Isolated(world, environment, QUICK) as measurer:
        outcome = tune(tasks, world, default_policy(), environment, measurer, store=store)
    assert {"torch.gemm.bf16", "reference.gemm"} <= set.intersection(
        *(set(c.choice.ranking) for c in outcome.layer.chosen)
    )
    assert len(store.read().measurements) == len(tasks) == 2


def test_the_example_plug_in_is_tuned_end_to_end():
    from phyai.policy import default_policy
    from phyai.tune import op_tasks

    world, environment = installed()
    own = [k for k in world.kernels if k.backend == "example"]
    if not own:
        pytest.skip("the example plug-in (examples/phyai-backend-example) is not installed")
    with Isolated(world, environment, QUICK) as measurer:
        for op in sorted({k.op for k in own}):
            outcome = tune(op_tasks(op, world), world, default_policy(), environment, measurer, seconds=30)
            for chosen in outcome.layer.chosen:
                assert {k.id for k in own if k.op == op} & set(chosen.measurement.results)


def test_a_policy_reaches_the_worker_as_it_is():
    rules = (
        Rule("u", match({"op": "activation", "shape.M": "<=8"}), 3, prefer=("good.*",), numerics=NumericsDemand(True)),
        Rule("o", match({"role": "x"}), restriction=Restriction(("good.activation",), pin=True), layer=Layer.OVERRIDE),
        Rule("t", match({"op": "activation"}), prefer=("faulty.activation.talks",), layer=Layer.TUNING),
    )
    policy = Policy(rules=rules, defaults=Defaults("error", NumericsDemand(), ("good", "faulty")))
    back = policy_of(policy_texts(policy), faulty_catalog())
    assert attrs.evolve(back, source=None, rules=()) == attrs.evolve(policy, source=None, rules=())
    assert sorted(back.rules, key=lambda r: r.id) == sorted(policy.rules, key=lambda r: r.id)
