"""New weights in place of old ones; random weights; memory that does not suffice; kernels that fail while captured."""

import gc
import weakref

import attrs
import pytest
import torch
from phyai.dispatch import Dispatcher
from phyai.engine import EngineArgs, EngineConfig, RuntimeConfig
from phyai.environment import Device, Environment
from phyai.errors import CallError, CheckpointError, DeviceMemoryError, InputError, KernelFailure, NoKernelError
from phyai.policy import Policy, parse_policy
from phyai_models.layers import Scope
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import LerobotBatch, NewWeights, RandomCheckpoint
from phyai_models.pi.loading import bytes_of, largest_bytes, model_class
from phyai_models.pi.model import PiModel, Savings
from phyai_models.pi.precision import Precision
from phyai_models.pi05 import PI05Args
from phyai_models.quantized.writing import write_quantized
from phyai_models.runner import memory_errors, require_free
from phyai_models.runner.graph import failures_named
from phyai_models.weights import RandomSource
from pi_cases import engine, random_batch, random_checkpoint
from safetensors.torch import load_file, save_file

STATIC = RuntimeConfig("static", prompt_buckets=(4, 8))
INT8 = """
schema: phyai.kernel/v1
quantization:
  method: rtn
  rules:
  - {id: all, match: {glob: "*.mlp.*"}, scheme: {weight: {dtype: int8, granularity: channel}}}
"""


def addresses(running):
    return {t.data_ptr() for s in running.dispatcher.sites for t in s.weights.values() if isinstance(t, torch.Tensor)}


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("policy", [None, INT8], ids=["plain", "int8"])
@pytest.mark.parametrize("runtime", [RuntimeConfig(), STATIC], ids=["eager", "static"])
def test_new_weights_answer_like_a_new_engine_in_the_same_memory(family, policy, runtime, tmp_path, catalog):
    old = random_checkpoint(tmp_path / "old", family)
    new = random_checkpoint(tmp_path / "new", family, seed=1)
    file = None
    if policy is not None:
        file = tmp_path / "policy.yaml"
        file.write_text(policy)
    batch = LerobotBatch(random_batch(old, batch=1, tokens=3))
    with engine(new, catalog=catalog, policy=file, runtime=runtime) as running:
        want = running.step(batch).actions
    with engine(old, catalog=catalog, policy=file, runtime=runtime) as running:
        first, before = running.step(batch).actions, addresses(running)
        running.step(NewWeights(new))
        assert torch.equal(running.step(batch).actions, want)
        assert addresses(running) == before
        running.step(NewWeights(old))
        assert torch.equal(running.step(batch).actions, first)


def test_weights_that_do_not_fit_change_nothing(tmp_path, catalog):
    old = random_checkpoint(tmp_path / "old", "pi05")
    other = random_checkpoint(tmp_path / "other", "pi05", depth=2)
    batch = LerobotBatch(random_batch(old))
    with engine(old, catalog=catalog) as running:
        first = running.step(batch).actions
        with pytest.raises(CheckpointError, match="do not fit"):
            running.step(NewWeights(other))
        assert torch.equal(running.step(batch).actions, first)


def test_damaged_weights_stop_the_engine_until_whole_ones_come(tmp_path, catalog):
    old = random_checkpoint(tmp_path / "old", "pi05")
    bad = random_checkpoint(tmp_path / "bad", "pi05")
    state = load_file(bad / "model.safetensors")
    state["action_in_proj.weight"][0, 0] = torch.nan
    save_file(state, bad / "model.safetensors")
    batch = LerobotBatch(random_batch(old))
    with engine(old, catalog=catalog) as running:
        first = running.step(batch).actions
        with pytest.raises(CheckpointError, match=r"NaN.*\n.*action_in_proj"):
            running.step(NewWeights(bad))
        with pytest.raises(InputError, match="mixed"):
            running.step(batch)
        running.step(NewWeights(old))
        assert torch.equal(running.step(batch).actions, first)


def test_a_kernel_that_cannot_take_new_weights_is_named_before_any_are_written(tmp_path, catalog):
    old, new = random_checkpoint(tmp_path / "old", "pi05"), random_checkpoint(tmp_path / "new", "pi05", seed=1)
    batch = LerobotBatch(random_batch(old))
    with engine(old, catalog=catalog) as running:
        first = running.step(batch).actions
        last = running.model.runner.model.action_out_proj.matmul.sites[0]
        entry = last.memo.entries()[0]
        entry.prepared = attrs.evolve(entry.prepared, refresh=None)
        with pytest.raises(CallError, match=r"action_out_proj:gemm: torch\.gemm\.fp32 cannot take new weights"):
            running.step(NewWeights(new))
        assert torch.equal(running.step(batch).actions, first)


def test_new_weights_that_are_quantized_otherwise_are_refused_by_their_schemes(tmp_path, catalog):
    old = random_checkpoint(tmp_path / "old", "pi05")
    write_quantized(old, parse_policy(INT8, catalog=catalog).policy, tmp_path / "int8", catalog=catalog)
    said = r": the new weights are quantized as w8a16_channel, and those in use unquantized; make a new engine with"
    with engine(old, catalog=catalog) as running, pytest.raises(CheckpointError, match=said):
        running.step(NewWeights(tmp_path / "int8"))
    said = r": the new weights are unquantized, and those in use quantized as w8a16_channel; make a new engine with"
    with engine(tmp_path / "int8", catalog=catalog) as running, pytest.raises(CheckpointError, match=said):
        running.step(NewWeights(old))


def small():
    return attrs.evolve(
        PiConfig.standard(cameras=1),
        language_model=attrs.evolve(PiConfig.standard().language_model, width=16, depth=2, mlp_dim=24, head_dim=8),
        expert=attrs.evolve(PiConfig.standard().expert, width=16, depth=2, mlp_dim=24, head_dim=8),
        vision=attrs.evolve(
            PiConfig.standard().vision, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
            num_attention_heads=2, image_size=16, patch_size=8,
        ),
        vocab_size=50,
    )  # fmt: skip


def test_random_weights_are_those_of_their_seed(catalog):
    from phyai.engine import Engine

    batch = {
        "observation.images.camera0": torch.rand(1, 3, 16, 16), "noise": torch.randn(1, 50, 32),
        "observation.language.tokens": torch.arange(5)[None],
        "observation.language.attention_mask": torch.ones(1, 5, dtype=torch.bool),
    }  # fmt: skip
    answers = []
    for seed in (0, 0, 1):
        args = EngineArgs("pi05", PI05Args(RandomCheckpoint(small(), seed)), EngineConfig())
        with Engine(args, catalog=catalog) as running:
            answers.append(running.step(LerobotBatch(batch)).actions)
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])
    assert answers[0].isfinite().all()


def test_random_tensors_keep_activations_in_size():
    weight = torch.empty(300, 200)
    RandomSource().take("mlp.weight", weight)
    assert abs(float(weight.std()) * 200**0.5 - 1) < 0.02
    norm = torch.empty(4000)
    RandomSource().take("layers.0.layer_norm1.weight", norm)
    assert abs(float(norm.mean()) - 1) < 0.01


def test_the_published_architecture_has_its_parameters(catalog):
    config = PiConfig.standard()
    dispatcher = Dispatcher(catalog, Policy(), Environment(Device("cpu")))
    scope = Scope(dispatcher, torch.device("meta"), "pi05", "", torch.bfloat16, torch.bfloat16)
    model = model_class("pi05")(scope, config, Precision.of(config, "bf16"), Savings(skip_last_layer=False))
    millions = bytes_of(model) / 2 / 1e6
    assert abs(millions - (412 + 1982 + 527 + 311 + 116)) < 8  # the towers as published, and small heads


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


def test_of_the_published_architecture_the_largest_layer_is_its_embedding_table(catalog):
    scope = Scope(
        Dispatcher(catalog, Policy(), Environment(Device("cpu"))), torch.device("meta"), "pi05", "",
        torch.bfloat16, torch.bfloat16,
    )  # fmt: skip
    config = PiConfig.standard()
    model = model_class("pi05")(scope, config, Precision.of(config, "bf16"), Savings())
    assert largest_bytes(model) == 257152 * 2048 * 2


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


def test_a_kernel_that_fails_is_named_and_not_chosen_again(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        first = running.step(batch).actions
        dispatcher = running.dispatcher
        site = next(s for s in dispatcher.sites if s.op.name == "attention_paged")
        broken = site.run

        def fail(*inputs, out=None, state=None):
            raise RuntimeError("operation not permitted when stream is capturing")

        site.run = fail
        program = next(iter(running.model.runner._programs.values()))
        with (
            pytest.raises(
                KernelFailure, match=r"torch\.attention_paged\.sdpa_flash failed at .*not permitted"
            ) as failure,
            torch.no_grad(),
            failures_named(dispatcher),
        ):
            program.compute()
        assert (failure.value.kernel, failure.value.site) == ("torch.attention_paged.sdpa_flash", site.name)
        assert site.run is fail
        site.run = broken
        dispatcher.exclude(failure.value.kernel, str(failure.value))
        assert not dispatcher.frozen
        torch.testing.assert_close(running.step(batch).actions, first, rtol=1e-5, atol=1e-6)
        chosen = {s.decisions[0].kernel.id for s in dispatcher.sites if s.op.name == "attention_paged"}
        assert chosen == {"torch.attention_paged.sdpa_math"}
        rejected = next(r for r in site.decisions[0].rejected if r.kernel == failure.value.kernel)
        assert "not permitted when stream is capturing" in str(rejected)


def test_a_failing_kernel_that_a_rule_pins_leaves_none(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    rules = tmp_path / "pin.yaml"
    rules.write_text(
        "schema: phyai.kernel/v1\nrules:\n"
        "- {id: mine, match: {op: attention_paged}, pin: torch.attention_paged.sdpa_flash}\n"
    )
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    with engine(directory, catalog=catalog, runtime=STATIC, policy=rules) as running:
        running.step(batch)
        running.dispatcher.exclude("torch.attention_paged.sdpa_flash", "failed while captured")
        with pytest.raises(NoKernelError, match="failed while captured"):
            running.step(batch)
