"""The engine: what it asks of a model, who may call it when, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest
from engine_models import Echo, EchoArgs, catalog
from phyai.dispatch import Dispatcher
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, EngineError, ModelPlugin
from phyai.environment import Device, Environment
from phyai.errors import CallError, DeclarationError, DeviceMemoryError, PolicyError
from phyai.policy import default_policy


def engine(config=None, **how):
    args = EngineArgs("echo", EchoArgs(how.pop("factor", 1)), config or EngineConfig())
    return Engine(args, catalog=how.pop("catalog", catalog()), **how)


def test_a_step_is_the_models_answer():
    with engine(factor=3) as running:
        assert running.step(7) == 42


def test_a_future_gives_what_a_step_gives():
    with engine() as running:
        assert [future.result(10) for future in [running.submit(i) for i in range(10)]] == [2 * i for i in range(10)]


def test_an_error_reaches_who_asked_and_the_engine_goes_on():
    with engine() as running:
        future = running.submit(ValueError("bad request"))
        with pytest.raises(ValueError, match="bad request"):
            future.result(10)
        with pytest.raises(KeyError):
            running.step(KeyError("k"))
        assert running.step(1) == 2


def test_steps_and_futures_take_turns():
    with engine() as running:
        held = running.submit("hold")
        assert running.model.started.wait(10)
        threads = [threading.Thread(target=running.step, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        running.model.release.set()
        for thread in threads:
            thread.join(10)
        assert held.result(10) == "held"
        assert running.model.most == 1


def test_the_engines_gpu_is_the_current_one_whichever_the_caller_has(monkeypatch):
    """Kernels are loaded and launched, and streams and events made, on the current device."""
    import torch

    current, seen = [], []

    @contextmanager
    def device(index):
        current.append(index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(Environment, "detect", lambda *_, **__: Environment(Device("cuda", index=1)))
    monkeypatch.setattr(Dispatcher, "compile_ahead", lambda self: seen.append(list(current)))
    monkeypatch.setattr(Echo, "step", lambda self, request: list(current))
    with engine() as running:
        assert running.host.device == "cuda:1"
        assert running.step(0) == running.submit(0).result(10) == [1]
    assert seen == [[1]]
    assert not current


def test_submit_returns_before_the_model_answers():
    with engine() as running:
        future = running.submit("hold")
        assert running.model.started.wait(10)
        assert not future.done()
        running.model.release.set()


def test_closing_finishes_the_running_request_and_cancels_the_others():
    running = engine()
    held, waiting = running.submit("hold"), running.submit(1)
    assert running.model.started.wait(10)
    closing = threading.Thread(target=running.close)
    closing.start()
    with pytest.raises(CancelledError):
        waiting.result(10)
    running.model.release.set()
    closing.join(10)
    assert held.result(10) == "held"
    assert running.model.closed == 1


def test_a_closed_engine_refuses_and_closing_again_does_nothing():
    running = engine()
    running.close()
    running.close()
    assert running.model.closed == 1
    with pytest.raises(EngineError, match="closed"):
        running.step(1)
    with pytest.raises(EngineError, match="closed"):
        running.submit(1)


def test_the_engine_closes_when_its_block_fails():
    with pytest.raises(ZeroDivisionError), engine() as running:
        _ = 1 / 0
    assert running.model.closed == 1


def test_memory_that_runs_out_while_kernels_are_compiled_ahead_is_said_and_the_model_closed(monkeypatch):
    closed = []

    def scarce(dispatcher, progress=None):
        raise RuntimeError("CUDA error: out of memory\nSearch for it")

    monkeypatch.setattr(Dispatcher, "compile_ahead", scarce)
    monkeypatch.setattr(Echo, "close", lambda model: closed.append(model))
    said = r"memory on cpu.* ran out while the kernels of echo were compiled ahead \(CUDA error: out of memory\); free"
    with pytest.raises(DeviceMemoryError, match=said):
        engine()
    assert len(closed) == 1


def test_other_errors_while_kernels_are_compiled_ahead_are_left_alone(monkeypatch):
    def broken(dispatcher, progress=None):
        raise CallError("no such parameter")

    monkeypatch.setattr(Dispatcher, "compile_ahead", broken)
    with pytest.raises(CallError, match=r"^no such parameter$"):
        engine()


def test_an_unknown_model_is_refused():
    with pytest.raises(DeclarationError, match=r"unknown model 'eco'.*echo"):
        Engine(EngineArgs("eco", EchoArgs()), catalog=catalog())


def test_the_arguments_of_another_model_are_refused():
    with pytest.raises(EngineError, match=r"should be a engine_models\.EchoArgs, and is a dict"):
        Engine(EngineArgs("echo", {}), catalog=catalog())


def test_a_policy_is_an_object_a_path_or_the_environments(tmp_path, monkeypatch):
    path = tmp_path / "policy.yaml"
    path.write_text("schema: phyai.kernel/v1\nprofile: autotune\n")
    shipped = default_policy()
    with engine(policy=shipped) as running:
        assert running.dispatcher.policy is shipped
    for given in (path, str(path)):
        with engine(policy=given) as running:
            assert running.dispatcher.policy.profile == "autotune"
    monkeypatch.setenv("PHYAI_KERNEL_CONFIG", str(path))
    with engine() as running:
        assert running.dispatcher.policy.profile == "autotune"
    with engine(policy=shipped) as running:  # an argument beats the variable
        assert running.dispatcher.policy is shipped


def test_a_refused_policy_file_is_an_error(tmp_path):
    (tmp_path / "policy.yaml").write_text("rules: 7")
    with pytest.raises(PolicyError):
        engine(policy=tmp_path / "policy.yaml")


def test_every_engine_has_its_own_dispatcher():
    with engine() as one, engine() as two:
        assert one.dispatcher is not two.dispatcher
        assert one.model.host.dispatcher is one.dispatcher


def test_the_host_tells_the_model_where_it_is():
    with engine(EngineConfig(DeviceConfig("cpu", "float16"), tags={"night"})) as running:
        host = running.model.host
        assert host.device == "cpu"
        assert host.config.device.params_dtype == "fp16"
        site = host.dispatcher.bind("activation", dtypes={"x": "fp32"}, dims={"D": 4})
        assert site.static["model.tags"] == frozenset({"night"})


@pytest.mark.parametrize(
    ("given", "name"), [(None, None), ("bfloat16", "bf16"), ("torch.float32", "fp32"), ("fp64", "fp64")]
)
def test_precisions_by_name(given, name):
    assert DeviceConfig(params_dtype=given).params_dtype == name


def test_precisions_as_torch_dtypes():
    torch = pytest.importorskip("torch")
    assert DeviceConfig(params_dtype=torch.bfloat16).params_dtype == "bf16"


@pytest.mark.parametrize("given", ["int8", "bf17", 7])
def test_a_precision_that_is_no_float_is_refused(given):
    with pytest.raises(CallError, match="allowed are"):
        DeviceConfig(params_dtype=given)


@pytest.mark.parametrize("target", ["engine_models", ":load", "engine_models:"])
def test_a_model_is_declared_with_importable_names(target):
    with pytest.raises(DeclarationError, match="module:name"):
        ModelPlugin("x", "", target, "engine_models:load")


def test_importing_the_engine_imports_no_tensor_library():
    code = "import sys, phyai.engine, phyai.engine.decisions; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
