"""π0 and π0.5 against what lerobot 0.6.1 computed, stage by stage, and against a plain implementation."""

import attrs
import pytest
import torch
from phyai_models.bench.plain import PlainPi
from phyai_models.pi.config import PiConfig
from phyai_models.pi.inputs import Inputs
from pi_cases import (
    CASES,
    POLICIES,
    REFERENCE,
    UNDER_POLICIES,
    assert_moves_alike,
    case,
    copy_case,
    cosine,
    inputs_of,
    random_batch,
    random_checkpoint,
    relative_error,
    run,
)
from safetensors.torch import load_file


def plain(directory, tensors, *, dtype=torch.float64, steps=None, sdpa=False):
    config = PiConfig.load(directory)
    model = PlainPi(load_file(directory / "model.safetensors"), config, dtype, sdpa=sdpa)
    inputs = inputs_of(tensors, config)
    stages = {}
    actions = model(
        *(getattr(inputs, f.name) for f in attrs.fields(Inputs)),
        model.embedded_times(steps or config.num_inference_steps),
        stages,
    )
    return {**stages, "actions": actions[..., : config.action_dim]}


def assert_stages(got, want, *, error=1e-5):
    assert set(got) == set(want)
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        if value.dtype == torch.bool:
            assert torch.equal(got[name], value), name
        else:
            assert relative_error(got[name], value) < error, name


@pytest.fixture(params=["default", "reference"])
def policy(request, tmp_path):
    if request.param == "default":
        return None
    path = tmp_path / "reference.yaml"
    path.write_text(REFERENCE)
    return path


@pytest.mark.parametrize("name", ["pi05_a", "pi0_a"])
def test_float32_stages_equal_lerobots(name, policy, catalog):
    directory, inputs, expected = case(name)
    assert_stages(run(directory, inputs, policy=policy, catalog=catalog), expected)


def test_mixed_precision_stages_point_where_lerobots_do(policy, catalog):
    directory, inputs, expected = case("pi05_c")
    got = run(directory, inputs, policy=policy, catalog=catalog)
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert got[name].shape == value.shape
        assert cosine(got[name], value) > 0.999, name


@pytest.mark.parametrize(("name", "policy"), UNDER_POLICIES)
def test_actions_under_every_policy_point_where_lerobots_do(name, policy, catalog):
    directory, inputs, expected = case(name)
    file = POLICIES / name.partition("_")[0] / policy
    got = run(directory, inputs, policy=file, catalog=catalog)["actions"]
    assert_moves_alike(file, got, inputs, expected["actions"])


@pytest.mark.parametrize("name", ["pi05_a", "pi0_a"])
def test_the_oracle_itself_equals_lerobot(name):
    directory, inputs, expected = case(name)
    assert_stages(plain(directory, inputs), expected)


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize(("heads", "kv_heads", "depth"), [(4, 1, 1), (4, 2, 3), (2, 2, 2)])
def test_other_sizes(family, heads, kv_heads, depth, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family, heads=heads, kv_heads=kv_heads, depth=depth, cameras=3)
    batch = random_batch(directory, batch=3)
    assert_stages(run(directory, batch, catalog=catalog), plain(directory, batch))


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("steps", [1, 3, 17])
def test_other_numbers_of_steps(family, steps, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family)
    batch = random_batch(directory)
    assert_stages(run(directory, batch, steps=steps, catalog=catalog), plain(directory, batch, steps=steps))


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_a_missing_camera_is_masked(family, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family, cameras=3)
    batch = random_batch(directory, present=2)
    assert_stages(run(directory, batch, catalog=catalog), plain(directory, batch))


def test_a_missing_camera_comes_after_those_that_are_there(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    batch = random_batch(directory)
    del batch["observation.images.cam0"]
    assert_stages(run(directory, batch, catalog=catalog), plain(directory, batch))


def test_empty_cameras_of_the_configuration_are_masked(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=1, empty_cameras=2)
    batch = random_batch(directory, present=1)
    got = run(directory, batch, catalog=catalog)
    assert_stages(got, plain(directory, batch))
    assert "vision.cam2" in got


def test_a_mask_with_holes(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory)
    batch["observation.language.attention_mask"] = torch.tensor([[1, 0, 1, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0]]).bool()
    got, want = run(directory, batch, catalog=catalog), plain(directory, batch)
    assert_stages(got, want)


@pytest.mark.parametrize("name", CASES)
def test_keys_without_prefix(name, tmp_path, catalog):
    directory, inputs, _ = case(name)
    bare = copy_case(name, tmp_path, tensors=lambda s: {k.removeprefix("model."): v for k, v in s.items()})
    want = run(directory, inputs, catalog=catalog)
    got = run(bare, inputs, catalog=catalog)
    assert all(torch.equal(got[k], want[k]) for k in want)


def test_the_output_table_stands_in_for_a_tied_input_table(tmp_path, catalog):
    _, inputs, expected = case("pi05_a")
    head = "model.paligemma_with_expert.paligemma.lm_head.weight"
    table = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"

    def tie(state):
        state[head] = state.pop(table)
        return state

    assert_stages(run(copy_case("pi05_a", tmp_path, tensors=tie), inputs, catalog=catalog), expected)


def test_a_double_precision_model_reproduces_the_oracle_closely(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory)
    got = run(directory, batch, dtype="float64", catalog=catalog)
    assert relative_error(got["actions"], plain(directory, batch)["actions"]) < 2e-7  # handed back in float32


def test_a_bfloat16_model_stays_near(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory)
    got = run(directory, batch, dtype="bfloat16", catalog=catalog)
    assert cosine(got["actions"], plain(directory, batch)["actions"]) > 0.999


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_lerobots_bfloat16_mix_in_other_sizes(family, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family, width=64, expert_width=48, head_dim=16, dtype="bfloat16")
    batch = random_batch(directory)
    got, want = run(directory, batch, catalog=catalog), plain(directory, batch)
    for name, value in want.items():
        if value.dtype != torch.bool:
            assert cosine(got[name], value) > 0.999, name


def test_weights_stored_in_half_precision_are_converted_exactly(tmp_path, catalog):
    directory = random_checkpoint(tmp_path / "half", "pi05")
    from safetensors.torch import save_file

    halved = {k: v.to(torch.bfloat16) for k, v in load_file(directory / "model.safetensors").items()}
    save_file(halved, directory / "model.safetensors")
    batch = random_batch(directory)
    assert_stages(run(directory, batch, catalog=catalog), plain(directory, batch))
