"""An engine with a π model in it: steps, futures, batches, policies."""

import threading
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import torch
from phyai.engine import EngineError, RuntimeConfig
from phyai.engine.decisions import decision_rows
from phyai.errors import InputError
from phyai_models.pi.hosted import LerobotBatch, NewWeights
from phyai_models.pi.inputs import TOKENS
from phyai_models.pi.model import PiModel
from phyai_models.pi05 import Observation
from pi_cases import REFERENCE, case, engine, random_batch, random_checkpoint, relative_error

TINY = Path(__file__).parents[2] / "examples" / "pi05-tiny"
IMAGES = np.random.RandomState(0).randint(0, 256, (3, 32, 40, 3), np.uint8)


def observation(i, seed):
    noise = torch.randn(50, 32, generator=torch.Generator().manual_seed(seed))
    words = ("wave", "pick up the coffee cup and put it on the saucer", "go left")[i]
    images = ({"base": IMAGES[0], "wrist": IMAGES[1]}, {"wrist": IMAGES[2]}, {"base": IMAGES[1]})[i]
    return Observation(images, words, [0.1 * i] * 8, noise)


def raising(error):
    def raise_it(*_, **__):
        raise error

    return raise_it


def test_a_batch_equals_its_requests_alone(catalog):
    """Different prompts, different missing cameras: each request's answer is its own."""
    requests = [observation(i, seed=i) for i in range(3)]
    with engine(TINY, catalog=catalog) as running:
        together = running.step(requests)
        for request, chunk in zip(requests, together, strict=True):
            assert relative_error(chunk.actions, running.step(request).actions) < 1e-5


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_the_roles_of_its_call_sites_are_those_that_the_model_declares(catalog, family):
    with engine(case(f"{family}_a")[0], catalog=catalog) as running:
        roles = {site.static["role"] for site in running.dispatcher.sites}
    assert roles == set(catalog.model(family).roles)


def test_a_smaller_batch_after_a_larger_one(catalog):
    with engine(TINY, catalog=catalog, num_steps=2) as running:
        alone = running.step(observation(0, seed=0)).actions
        running.step([observation(i, seed=i) for i in (1, 2, 0)])
        assert torch.equal(running.step(observation(0, seed=0)).actions, alone)


def test_a_seed_makes_the_noise_reproducible(catalog):
    directory, inputs, _ = case("pi05_a")
    batch = LerobotBatch({k: v for k, v in inputs.items() if k != "noise"})
    answers = []
    for seed in (1, 1, 2):
        with engine(directory, catalog=catalog, seed=seed) as running:
            answers.append([running.step(batch).actions for _ in range(2)])
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])
    assert not torch.equal(answers[0][0], answers[0][1])
    assert not torch.equal(answers[0][0], answers[2][0])


def test_a_refused_request_takes_no_noise_from_the_next(catalog, monkeypatch):
    directory, inputs, _ = case("pi05_a")
    tensors = {k: v for k, v in inputs.items() if k != "noise"}
    with engine(directory, catalog=catalog, seed=1) as running:
        want = running.step(LerobotBatch(tensors)).actions
    with engine(directory, catalog=catalog, seed=1) as running:
        with pytest.raises(InputError, match="vocabulary"):
            running.step(LerobotBatch({**tensors, TOKENS: tensors[TOKENS] + 10**6}))
        with monkeypatch.context() as patched:
            patched.setattr(PiModel, "sample", raising(RuntimeError("while it was computed")))
            with pytest.raises(RuntimeError, match="while it was computed"):
                running.step(LerobotBatch(tensors))
        assert torch.equal(running.step(LerobotBatch(tensors)).actions, want)


def test_submitted_requests_give_what_steps_give(catalog):
    with engine(TINY, catalog=catalog, num_steps=2) as running:
        futures = [running.submit(observation(i % 3, seed=i)) for i in range(5)]
        for i, future in enumerate(futures):
            want = running.step(observation(i % 3, seed=i)).actions
            assert torch.equal(future.result(timeout=60).actions, want)


def test_a_refused_request_fails_its_own_future_only(catalog):
    with engine(TINY, catalog=catalog, num_steps=1) as running:
        bad = running.submit(Observation({}, "go", [0.0] * 8))
        good = running.submit(observation(0, seed=0))
        with pytest.raises(InputError):
            bad.result(timeout=60)
        assert good.result(timeout=60).actions.shape == (50, 7)


def test_steps_from_several_threads_take_turns(catalog):
    with engine(TINY, catalog=catalog, num_steps=1) as running:
        want = [running.step(observation(i, seed=i)).actions for i in range(3)]
        got = [None] * 12

        def work(n):
            got[n] = running.step(observation(n % 3, seed=n % 3)).actions

        threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(got[n], want[n % 3]) for n in range(12))


def test_a_closed_engine_answers_nothing_and_lets_go_of_the_model(catalog):
    running = engine(TINY, catalog=catalog, num_steps=1)
    running.close()
    running.close()
    assert running.model.runner is None
    for call in (running.step, running.submit):
        with pytest.raises(EngineError, match="closed"):
            call(observation(0, seed=0))


def test_closing_cancels_what_waits(catalog):
    running = engine(TINY, catalog=catalog, num_steps=1)
    futures = [running.submit(observation(0, seed=0)) for _ in range(20)]
    running.close()
    for future in futures:
        try:
            assert future.result(timeout=60).actions.shape == (50, 7)
        except CancelledError:
            assert future.cancelled()
    assert futures[-1].cancelled()


def kernels(running, op):
    return {row.kernel for row in decision_rows(running.dispatcher.report()) if row.op == op}


def test_two_engines_with_different_policies_in_one_process(tmp_path, catalog):
    directory, inputs, expected = case("pi05_a")
    (tmp_path / "reference.yaml").write_text(REFERENCE)
    with (
        engine(directory, catalog=catalog) as one,
        engine(directory, catalog=catalog, policy=tmp_path / "reference.yaml") as two,
    ):
        for running in (one, two, one):
            assert relative_error(running.step(LerobotBatch(inputs)).actions, expected["actions"]) < 1e-5
        assert kernels(two, "gemm") == {"reference.gemm"}
        assert one.dispatcher is not two.dispatcher


def test_the_policy_file_of_the_environment_is_used(tmp_path, monkeypatch, catalog):
    directory, inputs, _ = case("pi05_a")
    (tmp_path / "reference.yaml").write_text(REFERENCE)
    monkeypatch.setenv("PHYAI_KERNEL_CONFIG", str(tmp_path / "reference.yaml"))
    with engine(directory, catalog=catalog) as running:
        running.step(LerobotBatch(inputs))
        assert {row.kernel.split(".")[0] for row in decision_rows(running.dispatcher.report())} <= {
            "reference",
            "decomposed",
        }


def test_call_sites_say_where_they_are(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", depth=2)
    with engine(directory, catalog=catalog, tags=("night",)) as running:
        running.step(LerobotBatch(random_batch(directory)))
        facts = {site.static["layer"]: site.static for site in running.dispatcher.sites if "layer" in site.static}
    assert facts["pi05.expert.layers.1.mlp"]["role"] == "expert"
    assert facts["pi05.language_model.layers.0.self_attn"]["role"] == "prefix"
    assert facts["pi05.vision_tower.layers.0.self_attn.qkv_proj"]["role"] == "vision"
    assert facts["pi05.action_in_proj"]["role"] == "head"
    assert {f["model.family"] for f in facts.values()} == {"pi05"}
    assert {f["model.tags"] for f in facts.values()} == {frozenset({"night"})}


def test_every_site_that_is_bound_is_called(tmp_path, catalog):
    """Nothing is prepared, and no weight held, for a call that never comes."""
    for family in ("pi05", "pi0"):
        directory = random_checkpoint(tmp_path / family, family)
        with engine(directory, catalog=catalog) as running:
            running.step(LerobotBatch(random_batch(directory)))
            silent = [site.name for site in running.dispatcher.report().sites if not site.decisions]
        assert silent == []


def test_a_frozen_engine_answers_the_same(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory))
    with engine(directory, catalog=catalog) as running:
        want = running.step(batch).actions
        running.dispatcher.freeze()
        assert torch.equal(running.step(batch).actions, want)


def test_weights_are_not_held_twice_while_loading(tmp_path, catalog):
    """Peak memory while loading is the model and little more: measured as torch's own allocations."""
    from torch.utils._python_dispatch import TorchDispatchMode

    directory = random_checkpoint(tmp_path, "pi05", width=96, depth=4, vocabulary=4000)
    size = (directory / "model.safetensors").stat().st_size
    live, peak = {}, 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal peak
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                import weakref

                storage = out.untyped_storage()
                key = storage.data_ptr()
                live[key] = storage.nbytes()
                weakref.finalize(storage, live.pop, key, None)
                peak = max(peak, sum(live.values()))
            return out

    with Count(), engine(directory, catalog=catalog):
        pass
    assert peak < 1.15 * size


@pytest.mark.parametrize("execution", ["eager", "static"])
def test_requests_come_from_inside_a_callers_inference_mode_or_not(execution, tmp_path, catalog):
    """Memory that is allocated in that mode can be written to in it alone."""
    directory = random_checkpoint(tmp_path, "pi05")
    with torch.inference_mode():
        running = engine(directory, catalog=catalog, runtime=RuntimeConfig(execution))
        batch = LerobotBatch(random_batch(directory, batch=1))
        first = running.step(batch).actions
    with running:
        assert torch.equal(running.step(batch).actions, first)
        assert torch.equal(running.submit(batch).result(60).actions, first)
        running.step(NewWeights(directory))
        assert torch.equal(running.step(batch).actions, first)
