"""New weights in place of old ones."""

import attrs
import pytest
import torch
from phyai.engine import RuntimeConfig
from phyai.errors import CallError, CheckpointError, InputError
from phyai.policy import parse_policy
from phyai_models.pi.hosted import LerobotBatch, NewWeights
from phyai_models.quantized.writing import write_quantized
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
