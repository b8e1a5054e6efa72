"""What is left of a capture that fails, with stand-ins for CUDA's side of it. (On a GPU: test_pi_gpu.)"""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from phyai.dispatch import Site
from phyai.engine import RuntimeConfig
from phyai.errors import DeviceMemoryError, KernelFailure
from phyai_models.pi.hosted import LerobotBatch
from phyai_models.pi.model import PiModel
from phyai_models.pi.program import Program
from phyai_models.runner import Recording, Warmer, graph, warm
from pi_cases import engine, random_batch, random_checkpoint


class Dispatcher:
    """One that decides nothing, and notes what is excluded."""

    epoch, frozen, sites = 0, False, ()

    def __init__(self):
        self.excluded = []

    def freeze(self):
        self.frozen = True

    def require_frozen(self):
        assert self.frozen

    def thaw(self):
        self.frozen = False

    def exclude(self, kernel, why):
        self.excluded.append(kernel)
        self.frozen = False


def test_every_attempt_to_capture_has_a_pool_of_its_own(monkeypatch):
    pools, used, prepared = iter(range(9)), [], []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(Warmer, "_warm_up", lambda self, compute: compute())

    def record(compute, dispatcher, pool):
        used.append(pool)
        if len(used) < 3:
            raise KernelFailure(f"kernel {len(used)} failed", "site", f"mine.{len(used)}")
        return Recording(compute, True)

    monkeypatch.setattr(warm, "record", record)
    dispatcher = Dispatcher()
    warmer = Warmer(dispatcher, torch.device("cuda"), graphs=True)
    first = warmer.record(lambda: None, lambda: prepared.append(1))
    assert first.captured
    assert dispatcher.excluded == ["mine.1", "mine.2"]
    assert len(set(used)) == len(prepared) == 3
    second = warmer.record(lambda: None, lambda: None)
    assert used[3] == used[2], "graphs that were captured share their memory"
    del first, second
    gc.collect()
    warmer.record(lambda: None, lambda: None)
    assert used[4] not in used[:4], "torch takes no pool again whose graphs are gone"


def test_what_else_ends_a_capture_is_raised_and_its_pool_is_left(monkeypatch):
    pools, used = iter(range(9)), []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(Warmer, "_warm_up", lambda self, compute: compute())

    def record(compute, dispatcher, pool):
        used.append(pool)
        if len(used) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Recording(compute, True)

    monkeypatch.setattr(warm, "record", record)
    warmer = Warmer(Dispatcher(), torch.device("cuda"), graphs=True)
    with pytest.raises(torch.OutOfMemoryError):
        warmer.record(lambda: None, lambda: None)
    warmer.record(lambda: None, lambda: None)
    assert used[0] != used[1]


def test_memory_that_runs_out_while_recording_is_said_and_earlier_recordings_make_room(tmp_path, catalog, monkeypatch):
    directory = random_checkpoint(tmp_path, "pi05")
    small, large = (LerobotBatch(random_batch(directory, batch=1, tokens=tokens)) for tokens in (3, 7))
    with engine(directory, catalog=catalog, runtime=RuntimeConfig("static", prompt_buckets=(4, 8))) as running:
        want, runner, compute = running.step(small).actions, running.model.runner, Program.compute_rest
        made = []

        def fails(self):
            made.append(weakref.ref(self))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

        monkeypatch.setattr(Program, "compute_rest", fails)
        with pytest.raises(
            DeviceMemoryError,
            match=r"a recording for batch 1, 2 cameras, 8 prompt tokens, 4 steps needs \S+ GB .*max_graphs",
        ) as error:
            running.step(large)
        memory = runner.memory()
        assert (memory.recordings, memory.cache) == (0, 0)
        assert error.value.__traceback__ is not None
        assert made[-1]() is None, "nor does the error hold what was made"
        monkeypatch.setattr(Program, "compute_rest", compute)
        assert torch.equal(running.step(small).actions, want)


def test_memory_that_runs_out_kernel_by_kernel_is_said_and_the_next_request_is_answered(tmp_path, catalog, monkeypatch):
    directory = random_checkpoint(tmp_path, "pi05")
    request = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    with engine(directory, catalog=catalog, runtime=RuntimeConfig("eager")) as running:
        want, sample = running.step(request).actions, PiModel.sample

        def fails(self, *given):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

        monkeypatch.setattr(PiModel, "sample", fails)
        with pytest.raises(
            DeviceMemoryError, match=r"a request of batch 1, 2 cameras, 3 prompt tokens, 4 steps needs \S+ GB of memory"
        ):
            running.step(request)
        monkeypatch.setattr(PiModel, "sample", sample)
        assert torch.equal(running.step(request).actions, want)


def test_memory_that_runs_out_while_loading_is_said_and_nothing_is_left(tmp_path, catalog, monkeypatch):
    directory = random_checkpoint(tmp_path, "pi05")
    loaded = []
    load = PiModel.load

    def fails(self, source):
        load(self, source)
        loaded.append(weakref.ref(self))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(PiModel, "load", fails)
    with pytest.raises(DeviceMemoryError, match=r"needs \d+\.\d+ GB of memory on cpu.*\(CUDA out of memory") as error:
        engine(directory, catalog=catalog)
    assert loaded
    assert error.value.__traceback__ is not None
    assert loaded[0]() is None, "nor does the error hold it: another engine may be made while it is handled"


def test_memory_that_runs_out_while_all_buckets_are_recorded_leaves_no_model(tmp_path, catalog, monkeypatch):
    directory = random_checkpoint(tmp_path, "pi05")
    loaded, weights, load = [], [], PiModel.load

    def noted(self, source):
        load(self, source)
        loaded.append(weakref.ref(self))
        weights.append(weakref.ref(self.dispatcher.sites[0].weights["weight"]))

    def fails(self):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(PiModel, "load", noted)
    monkeypatch.setattr(Program, "compute_rest", fails)
    runtime = RuntimeConfig("static", prompt_buckets=(4, 8), new_graphs=False)
    with pytest.raises(DeviceMemoryError, match="a recording for batch 1, 2 cameras, 4 prompt tokens") as error:
        engine(directory, catalog=catalog, runtime=runtime)
    assert error.value.__traceback__ is not None
    assert loaded[0]() is weights[0]() is None


def test_a_kernel_that_fails_before_it_is_captured_is_named_and_replaced(tmp_path, catalog, monkeypatch, caplog):
    """As one does that is compiled by its first call, where there is no compiler; here one inside a composite call."""
    import phyai_backend_reference.torch_rows.gemm as rows

    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    runtime = RuntimeConfig("static", prompt_buckets=(4, 8))
    with engine(directory, catalog=catalog) as running:
        want = running.step(batch).actions

    def fails(*given):
        raise RuntimeError("no compiler is here")

    monkeypatch.setattr(rows.F, "linear", fails)
    with engine(directory, catalog=catalog, runtime=runtime) as running:
        got = running.step(batch).actions
        chosen = {d.kernel.id for s in running.dispatcher.sites if s.op.name == "gemm" for d in s.decisions}
    assert chosen == {"reference.gemm"}
    assert "torch.gemm.fp32 failed at " in caplog.text
    assert "while it was warmed up: RuntimeError: no compiler is here; another kernel takes its place" in caplog.text
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_kernel_that_cannot_plan_is_named_and_replaced(tmp_path, catalog, monkeypatch, caplog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    with engine(directory, catalog=catalog, runtime=RuntimeConfig("static", prompt_buckets=())) as running:
        want = running.step(batch).actions
        site = next(site for site in running.dispatcher.sites if site.op.name == "attention_paged")
        failing = site.decisions[0].kernel.id
    plan = Site.plan

    def fails(self, metadata, **dims):
        if self.decide(**dims).kernel.id == failing:
            raise RuntimeError("no compiler is here")
        return plan(self, metadata, **dims)

    monkeypatch.setattr(Site, "plan", fails)
    with engine(directory, catalog=catalog, runtime=RuntimeConfig("static", prompt_buckets=())) as running:
        got = running.step(batch).actions
        chosen = {d.kernel.id for s in running.dispatcher.sites if s.op.name == "attention_paged" for d in s.decisions}
    assert failing not in chosen
    assert f"{failing} failed at " in caplog.text
    assert "while it planned: RuntimeError: no compiler is here; another kernel takes its place" in caplog.text
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.fixture
def cuda(monkeypatch):
    """CUDA's side: which stream is current, and which pools allocations go to."""
    state = SimpleNamespace(stream="mine", recording=set(), released=[], invalid=False, segments=[])

    class Graph:
        def __init__(self, made, pool, **_):
            self.pool = pool

        def __enter__(self):
            state.stream = "capture"
            state.recording.add(self.pool)

        def __exit__(self, *error):
            if state.invalid:
                raise RuntimeError("operation failed due to a previous error during capture")
            state.recording.remove(self.pool)
            state.stream = "mine"

    def end(device, pool):
        if pool not in state.recording:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        state.recording.remove(pool)

    for name, value in {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None), "graph": Graph,
        "memory_snapshot": lambda: state.segments,
        "current_stream": lambda: state.stream, "synchronize": lambda: None, "current_device": lambda: 0,
        "set_stream": lambda stream: setattr(state, "stream", stream),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda device, pool: state.released.append(pool), raising=False)
    return state


@pytest.mark.parametrize("invalid", [True, False], ids=["invalidated", "raised on the host"])
def test_a_failed_capture_is_ended(invalid, cuda):
    """By CUDA, whose error on ending it hides the kernel's; or by a kernel that raises before it launches anything."""
    dispatcher = Dispatcher()
    dispatcher.freeze()

    def compute():
        cuda.invalid = invalid
        raise KernelFailure("the kernel's own words", "site", "mine.kernel")

    with pytest.raises(KernelFailure, match="the kernel's own words"):
        graph.record(compute, dispatcher, (0, 1))
    assert cuda.stream == "mine"
    assert not cuda.recording
    assert cuda.released == ([(0, 1)] if invalid else [])


def test_a_recording_counts_what_its_pool_took(cuda):
    dispatcher = Dispatcher()
    dispatcher.freeze()
    ours, others = {"segment_pool_id": (0, 7)}, {"segment_pool_id": (0, 0)}
    cuda.segments = [{**others, "total_size": 900}, {**ours, "total_size": 5}]

    def compute():  # what was cached elsewhere is given back meanwhile
        cuda.segments = [{**ours, "total_size": 5}, {**ours, "total_size": 20}, {**others, "total_size": 100}]

    assert graph.record(compute, dispatcher, (0, 7)).nbytes == 20


def test_a_capture_that_only_its_end_finds_broken_is_ended_too(cuda):
    dispatcher = Dispatcher()
    dispatcher.freeze()
    with pytest.raises(RuntimeError, match="previous error during capture"):
        graph.record(lambda: setattr(cuda, "invalid", True), dispatcher, (0, 1))
    assert (cuda.stream, cuda.recording) == ("mine", set())


def test_a_kernel_is_named_that_was_called_without_its_optional_inputs(tmp_path, catalog, monkeypatch):
    """Attention is called with q, k and v; its mask and its boundaries are left out."""
    directory = random_checkpoint(tmp_path, "pi05")
    with engine(directory, catalog=catalog, runtime=RuntimeConfig("static", prompt_buckets=())) as running:
        running.step(LerobotBatch(random_batch(directory, batch=1, tokens=3)))
        program = next(iter(running.model.runner._programs.values()))
        site = next(site for site in running.dispatcher.sites if site.op.name == "attention")

        def fails(*given, **named):
            raise RuntimeError("no such tile")

        monkeypatch.setattr(site, "run", fails)
        with (
            pytest.raises(KernelFailure, match=r"^(torch|reference)\.attention.* failed at .*: no such tile"),
            graph.failures_named(running.dispatcher),
            torch.no_grad(),
        ):
            program.compute()
