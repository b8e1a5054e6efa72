"""Memory that does not suffice: said, and what was made let go of."""

import gc
import weakref

import attrs
import pytest
import torch
from phyai.dispatch import Dispatcher
from phyai.engine import RuntimeConfig
from phyai.errors import DeviceMemoryError, InputError
from phyai_models.pi.hosted import LerobotBatch, NewWeights
from phyai_models.pi.model import PiModel
from phyai_models.runner import memory_errors, require_free
from pi_cases import engine, random_batch, random_checkpoint

STATIC = RuntimeConfig("static", prompt_buckets=(4, 8))


def test_too_little_memory_is_said_before_anything_is_allocated():
    with pytest.raises(DeviceMemoryError, match=r"pi05 needs 7\.00 GB of memory on cuda:0, and 2\.00 GB are free; do"):
        require_free(7 * 10**9, torch.device("cuda:0"), "pi05", "do less", lambda _: 2 * 10**9)
    require_free(7 * 10**9, torch.device("cuda:0"), "pi05", "do less", lambda _: 8 * 10**9)


def test_running_out_of_memory_lets_go_of_what_was_allocated():
    held = [torch.zeros(3)]

    def fail():
        big = torch.zeros(5)
        held.append(big)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")

    with (
        pytest.raises(
            DeviceMemoryError, match=r"a graph needs 1\.00 GB .*; use less \(CUDA out of memory\. Tried"
        ) as e,
        memory_errors(torch.device("cpu"), "a graph", 10**9, "use less", held.clear),
    ):
        fail()
    assert held == []
    assert e.value.__cause__ is None


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
        MemoryError("Out of memory allocating 5 bytes"),
        MemoryError(),  # what Python raises, without a word
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_cudas_libraries_run_out_of_memory_as_torch_does(error):
    """Instantiating a graph, CuPy's allocations, and cuBLAS: it is nobody's kernel that failed."""
    with (
        pytest.raises(DeviceMemoryError, match=r"a graph needs 1\.00 GB"),
        memory_errors(torch.device("cpu"), "a graph", 10**9, "use less", lambda: None),
    ):
        raise error


def test_other_errors_than_of_memory_are_left_alone():
    with (
        pytest.raises(RuntimeError, match=r"^illegal memory access$"),
        memory_errors(torch.device("cpu"), "a graph", 10**9, "use less", lambda: None),
    ):
        raise RuntimeError("illegal memory access")


def out_of_memory(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def test_memory_that_runs_out_while_the_model_is_made_is_said_as_while_it_is_loaded(tmp_path, catalog, monkeypatch):
    from phyai_models.pi import model

    directory, table = random_checkpoint(tmp_path, "pi05"), model.rotary_table

    def scarce(config, positions, dtype, device):
        return table(config, positions, dtype, device) if device.type == "meta" else out_of_memory()

    monkeypatch.setattr(model, "rotary_table", scarce)
    with pytest.raises(DeviceMemoryError, match=r"^pi05 in float32 needs .* of memory on cpu; .*CUDA out of memory"):
        engine(directory, catalog=catalog)


def test_memory_that_runs_out_for_new_weights_is_said_and_they_can_be_given_again(tmp_path, catalog, monkeypatch):
    old, new = random_checkpoint(tmp_path / "old", "pi05"), random_checkpoint(tmp_path / "new", "pi05", seed=1)
    batch = LerobotBatch(random_batch(old))
    with engine(new, catalog=catalog) as running:
        want = running.step(batch).actions
    with engine(old, catalog=catalog) as running:
        last = running.model.runner.model.action_out_proj
        with monkeypatch.context() as patched:
            patched.setattr(last, "refresh", out_of_memory)
            with pytest.raises(
                DeviceMemoryError, match=r"^reading new weights layer by layer needs .* on cpu; free mem"
            ):
                running.step(NewWeights(new))
        with pytest.raises(InputError, match="mixed"):
            running.step(batch)
        running.step(NewWeights(new))
        assert torch.equal(running.step(batch).actions, want)


def test_memory_that_runs_out_while_a_kernel_is_prepared_is_said_and_no_other_kernel_takes_its_place(
    tmp_path, catalog, monkeypatch
):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))

    def prepare(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        want = running.step(batch).actions
    target = catalog.kernel("torch.attention_paged.sdpa_flash").prepare
    with monkeypatch.context() as patched:
        patched.setattr(target.replace(":", "."), prepare)
        with pytest.raises(DeviceMemoryError, match=r"a recording for .* needs .*CUDA out of memory\. Tried"):
            engine(directory, catalog=catalog, runtime=attrs.evolve(STATIC, new_graphs=False))
        running = engine(directory, catalog=catalog, runtime=STATIC)
        with running, pytest.raises(DeviceMemoryError, match="a recording for"):
            running.step(batch)
        patched.undo()
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        assert torch.equal(running.step(batch).actions, want)


def test_memory_that_runs_out_while_kernels_are_compiled_ahead_is_said_and_the_model_is_let_go(
    tmp_path, catalog, monkeypatch
):
    directory, models = random_checkpoint(tmp_path, "pi05"), []
    runtime = attrs.evolve(STATIC, new_graphs=False)

    def scarce(dispatcher, progress=None):
        models.extend(weakref.ref(layer) for layer in gc.get_objects() if issubclass(type(layer), PiModel))
        out_of_memory()

    gc.collect()
    monkeypatch.setattr(Dispatcher, "compile_ahead", scarce)
    said = r"^compiling ahead for batch 1, .* needs .* on cpu; use fewer or smaller graphs .*CUDA out of memory\. Tried"
    with pytest.raises(DeviceMemoryError, match=said):
        engine(directory, catalog=catalog, runtime=runtime)
    assert models
    assert [model() for model in models] == [None] * len(models)
