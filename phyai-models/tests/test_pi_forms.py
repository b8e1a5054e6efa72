"""New weights in another quantized form than those in use: refused before anything is written."""

import pytest
import torch
from phyai.errors import CheckpointError
from phyai.policy import parse_policy
from phyai_models.pi.hosted import LerobotBatch, NewWeights
from phyai_models.quantized.writing import write_quantized
from pi_cases import engine, random_batch, random_checkpoint
from safetensors.torch import load_file, save_file

RULES = """
schema: phyai.kernel/v1
quantization:
  method: rtn
  rules:
  - {match: {glob: "%s"}, scheme: {weight: {%s}}}
"""
INT4, INT8 = "dtype: int4, group_size: 4", "dtype: int8, granularity: channel"


def quantized(directory, out, glob, weight, catalog):
    return write_quantized(
        directory, parse_policy(RULES % (glob, weight), catalog=catalog).policy, out, catalog=catalog
    ).out


def parameters(running):
    return [t.clone() for s in running.dispatcher.sites for t in s.weights.values() if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize(
    "glob", ["*.expert.*.mlp.down_proj", "*.mlp.*", "*.vision_tower.*.q_proj", "*.expert.*.v_proj"]
)
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (None, INT4, "the new weights are .*quantized as w4a16_g4.*, and those in use unquantized; make a new engine"),
        (INT4, None, "the new weights are unquantized, and those in use .*quantized as w4a16_g4.*; make a new engine"),
        (INT8, INT4, "are .*quantized as w4a16_g4.*, and those in use .*quantized as w8a16_channel.*; make a new"),
    ],
)
def test_a_checkpoint_in_another_form_changes_nothing(glob, old, new, said, tmp_path, catalog):
    first = random_checkpoint(tmp_path / "first", "pi05", width=32)
    other = random_checkpoint(tmp_path / "other", "pi05", width=32, seed=1)
    used = first if old is None else quantized(first, tmp_path / "used", glob, old, catalog)
    given = other if new is None else quantized(other, tmp_path / "given", glob, new, catalog)
    batch = LerobotBatch(random_batch(first, batch=1, tokens=3))
    with engine(used, catalog=catalog) as running:
        want, before = running.step(batch).actions, parameters(running)
        with pytest.raises(CheckpointError, match=said):
            running.step(NewWeights(given))
        assert all(map(torch.equal, parameters(running), before))
        assert torch.equal(running.step(batch).actions, want)


def test_quantized_weights_that_are_damaged_change_nothing(tmp_path, catalog):
    first = random_checkpoint(tmp_path / "first", "pi05")
    used = quantized(first, tmp_path / "used", "*.expert.*.mlp.down_proj", INT8, catalog)
    bad = quantized(first, tmp_path / "bad", "*.expert.*.mlp.down_proj", INT8, catalog)
    state = load_file(bad / "model.safetensors")
    state[max(name for name in state if name.endswith("weight_scale"))].fill_(torch.nan)
    save_file(state, bad / "model.safetensors")
    batch = LerobotBatch(random_batch(first, batch=1, tokens=3))
    with engine(used, catalog=catalog) as running:
        want = running.step(batch).actions
        with pytest.raises(CheckpointError, match="NaN"):
            running.step(NewWeights(bad))
        assert torch.equal(running.step(batch).actions, want)


@pytest.mark.parametrize("weight", [INT8, "dtype: int8, granularity: tensor"])
def test_weights_that_are_quantized_as_they_are_read_are_renewed(weight, tmp_path, catalog):
    policy, counted = tmp_path / "policy.yaml", []
    policy.write_text(RULES % ("*.mlp.*", weight))
    old, new = (random_checkpoint(tmp_path / str(seed), "pi05", seed=seed) for seed in (0, 1))
    batch = LerobotBatch(random_batch(old, batch=1, tokens=3))
    with engine(new, catalog=catalog, policy=policy) as running:
        want = running.step(batch).actions
    with engine(old, catalog=catalog, policy=policy, progress=lambda *read: counted.append(read)) as running:
        running.step(batch)
        at_start = list(counted)
        counted.clear()
        running.step(NewWeights(new))
        assert torch.equal(running.step(batch).actions, want)
    assert counted == at_start, "what is read twice is told of once"
