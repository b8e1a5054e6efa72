"""Requests that do not fit the model, and what they are told; observations end to end."""

from pathlib import Path

import numpy as np
import pytest
import torch
from phyai.errors import CheckpointError, InputError
from phyai_models.pi.hosted import LerobotBatch
from phyai_models.pi05 import Observation, PI05Args
from pi_cases import case, copy_case, engine, random_batch, random_checkpoint, run

TINY = Path(__file__).parents[2] / "examples" / "pi05-tiny"
IMAGE = np.random.RandomState(0).randint(0, 256, (48, 64, 3), np.uint8)
STATE = [0.1] * 8


@pytest.fixture(scope="module")
def tiny(catalog):
    with engine(TINY, catalog=catalog, seed=0, num_steps=2) as running:
        yield running


@pytest.fixture(scope="module")
def small(catalog):
    with engine(case("pi05_a")[0], catalog=catalog) as running:
        yield running


def batch(**changes):
    _, inputs, _ = case("pi05_a")
    return {k: v for k, v in {**inputs, **changes}.items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation.language.tokens": None}, "lacks observation.language.tokens"),
        ({"observation.images.cam0": None, "observation.images.cam1": None}, "no camera image"),
        ({"observation.images.cam7": torch.zeros(2, 3, 28, 28)}, "unknown cameras observation.images.cam7"),
        ({"observation.images.cam0": torch.zeros(2, 4, 28, 28)}, "cam0 has shape"),
        ({"observation.images.cam0": torch.zeros(3, 28, 28)}, "cam0 has shape"),
        ({"observation.images.cam0": torch.full((2, 3, 28, 28), 200.0)}, "divide by 255"),
        ({"observation.images.cam0": torch.full((2, 3, 28, 28), torch.nan)}, "cam0"),
        ({"observation.images.cam0": torch.zeros(3, 3, 28, 28)}, "cam0"),
        ({"observation.state": torch.zeros(2, 33)}, "observation.state has shape"),
        ({"observation.state": torch.zeros(2, 7)}, r"give \[2, 8\] or, padded, \[2, 32\]"),
        ({"observation.state": torch.zeros(2, 9)}, "observation.state has shape"),
        ({"observation.state": torch.full((2, 8), torch.nan)}, "NaN"),
        ({"observation.language.tokens": torch.full((2, 12), 3.5)}, "should be int64"),
        ({"observation.language.attention_mask": torch.ones(2, 11, dtype=torch.bool)}, "same shape"),
        ({"observation.language.attention_mask": torch.ones(2, 12)}, "bool"),
        ({"observation.language.tokens": torch.full((2, 12), 512)}, "vocabulary has ids 0..511"),
        ({"observation.language.tokens": torch.full((2, 12), -1)}, "vocabulary"),
        ({"noise": torch.zeros(2, 9, 32)}, "noise should be"),
        ({"noise": torch.full((2, 10, 32), torch.inf)}, "noise should be"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(small, changes, message):
    with pytest.raises(InputError, match=message):
        small.step(LerobotBatch(batch(**changes)))


def test_a_prompt_longer_than_the_model_takes_is_refused(small):
    tokens = torch.zeros(2, 300, dtype=torch.int64)
    mask = torch.arange(300)[None] < torch.tensor([[201], [5]])
    given = batch(**{"observation.language.tokens": tokens, "observation.language.attention_mask": mask})
    with pytest.raises(InputError, match="a prompt of 201 tokens; this checkpoint takes 200"):
        small.step(LerobotBatch(given))


def test_padding_beyond_the_longest_prompt_is_no_prompt(small):
    """Only valid tokens count: 300 slots with few of them used are fine, and change nothing."""
    given = batch()
    wide = {
        "observation.language.tokens": torch.nn.functional.pad(given["observation.language.tokens"], (0, 288)),
        "observation.language.attention_mask": torch.nn.functional.pad(
            given["observation.language.attention_mask"], (0, 288)
        ),
    }
    want = small.step(LerobotBatch(given)).actions
    assert torch.equal(small.step(LerobotBatch({**given, **wide})).actions, want)


def test_images_of_another_size_are_resized_with_padding(small):
    from phyai_models.processors.images import resize_with_pad

    large = torch.rand(2, 3, 40, 60, generator=torch.Generator().manual_seed(1))
    given = batch(**{"observation.images.cam0": large})
    want = batch(**{"observation.images.cam0": resize_with_pad(large, 28)})
    assert torch.equal(small.step(LerobotBatch(given)).actions, small.step(LerobotBatch(want)).actions)


def test_channels_last_images_are_understood(small):
    given = batch()
    last = {"observation.images.cam0": given["observation.images.cam0"].permute(0, 2, 3, 1)}
    assert torch.equal(small.step(LerobotBatch({**given, **last})).actions, small.step(LerobotBatch(given)).actions)


def test_pi0_needs_the_state(catalog):
    directory, inputs, _ = case("pi0_a")
    inputs = {k: v for k, v in inputs.items() if k != "observation.state"}
    with engine(directory, catalog=catalog) as running, pytest.raises(InputError, match=r"lacks observation\.state"):
        running.step(LerobotBatch(inputs))


def test_an_observation_gives_a_chunk_in_the_robots_units(tiny):
    chunk = tiny.step(Observation({"base": IMAGE, "wrist": IMAGE}, "pick up the cup", STATE))
    assert chunk.actions.shape == (50, 7)
    assert chunk.actions.dtype == torch.float32
    assert torch.isfinite(chunk.actions).all()


def test_an_observation_equals_its_batch_in_lerobots_names(tiny):
    noise = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    observation = Observation({"observation.images.wrist": IMAGE}, "pick up the cup", STATE, noise)
    got = tiny.step(observation).actions
    processor = tiny.model.processor
    tokens, mask = processor._tokens(["pick up the cup"], torch.tensor([STATE]) / 1.5)
    named = {
        "observation.images.wrist": (torch.from_numpy(IMAGE).permute(2, 0, 1).float() / 255)[None],
        "observation.language.tokens": tokens,
        "observation.language.attention_mask": mask,
        "noise": noise[None],
    }
    normalized = tiny.step(LerobotBatch(named)).actions[0]
    low = torch.tensor([-0.3, -0.3, -0.3, -0.6, -0.6, -0.6, 0.0])
    high = torch.tensor([0.3, 0.3, 0.3, 0.6, 0.6, 0.6, 1.0])
    torch.testing.assert_close(got, (normalized + 1) * (high - low) / 2 + low, rtol=1e-5, atol=1e-6)


def test_the_answer_depends_on_every_part_of_an_observation(tiny):
    noise = torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    base = {"images": {"base": IMAGE}, "instruction": "pick up the cup", "state": STATE, "noise": noise}
    changes = [
        {"images": {"base": 255 - IMAGE}}, {"images": {"base": IMAGE, "wrist": IMAGE}}, {"instruction": "wave"},
        {"state": [0.9] * 8}, {"noise": noise + 1},
    ]  # fmt: skip
    want = tiny.step(Observation(**base)).actions
    for change in changes:
        got = tiny.step(Observation(**{**base, **change})).actions
        assert (got - want).abs().max() > 1e-3, change


def test_a_camera_is_known_by_its_place_among_those_given_only(tiny):
    """π models tell cameras apart by their order; with one of them it makes no difference which it is."""
    noise = torch.zeros(50, 32)
    alone = [tiny.step(Observation({camera: IMAGE}, "go", STATE, noise)).actions for camera in ("base", "wrist")]
    assert torch.equal(*alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": {}}, "without any camera image"),
        ({"images": {"left": IMAGE}}, "unknown camera 'left'; this checkpoint knows base, wrist"),
        ({"images": {"base": IMAGE, "observation.images.base": IMAGE}}, "given twice"),
        ({"images": {"base": IMAGE[..., :2]}}, "base"),
        ({"instruction": " "}, "say in words"),
        ({"instruction": "word " * 300}, "Shorten the instruction"),
        ({"state": [0.1] * 7}, "has 8 numbers"),
        ({"state": [[0.1] * 8]}, "has 8 numbers"),
        ({"state": [float("nan")] * 8}, "NaN"),
        ({"noise": torch.zeros(50, 31)}, "noise"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(tiny, change, message):
    base = {"images": {"base": IMAGE}, "instruction": "pick up the cup", "state": STATE}
    with pytest.raises(InputError, match=message):
        tiny.step(Observation(**{**base, **change}))


def test_a_long_prompt_is_cut_when_asked(catalog):
    with engine(TINY, catalog=catalog, num_steps=1, truncate_prompt=True) as running:
        chunk = running.step(Observation({"base": IMAGE}, "word " * 300, STATE))
    assert torch.isfinite(chunk.actions).all()


@pytest.mark.parametrize("request_", [None, 7, "pick up", [], [1], {}])
def test_something_else_is_refused(tiny, request_):
    with pytest.raises(InputError, match="Observation"):
        tiny.step(request_)


def test_without_tokenizer_or_statistics_observations_are_refused_and_batches_are_not(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", state_dim=8)
    with engine(directory, catalog=catalog) as running:
        running.step(LerobotBatch(random_batch(directory)))
        with pytest.raises(CheckpointError, match=r"policy_preprocessor\.json"):
            running.step(Observation({"cam0": IMAGE}, "go", STATE))


def test_without_a_tokenizer_the_error_says_where_to_put_it(tmp_path, catalog):
    identity = {"normalization_mapping": {"STATE": "IDENTITY", "ACTION": "IDENTITY"}}
    directory = copy_case("pi05_a", tmp_path, config=identity)
    with engine(directory, catalog=catalog) as running, pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        running.step(Observation({"cam0": IMAGE}, "go", STATE))


def test_relative_actions_are_added_to_the_state(tmp_path, catalog):
    import shutil

    changes = {
        "use_relative_actions": True, "relative_exclude_joints": ["gripper"],
        "action_feature_names": ["a", "b", "c", "d", "e", "f", "gripper"],
    }  # fmt: skip
    import json

    directory = tmp_path / "relative"
    shutil.copytree(TINY, directory)
    config = json.loads((directory / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    observation = Observation({"base": IMAGE}, "go", np.arange(8) / 10, torch.zeros(50, 32))
    with (
        engine(TINY, catalog=catalog, num_steps=1) as plain,
        engine(directory, catalog=catalog, num_steps=1) as relative,
    ):
        offset = relative.step(observation).actions - plain.step(observation).actions
    torch.testing.assert_close(
        offset, torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.0]).expand(50, 7), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("steps", [0, 1001, 10**9, 2.0, True])
def test_wrong_numbers_of_steps_are_refused(steps):
    message = f"num_steps={steps}; give a whole number from 1 to 1000: every step takes time"
    for make in (lambda: LerobotBatch({}, num_steps=steps), lambda: PI05Args(TINY, num_steps=steps)):
        with pytest.raises(InputError, match=message):
            make()
    LerobotBatch({}, num_steps=1000)


@pytest.mark.parametrize("name", ["pi05_a", "pi0_a"])
def test_broken_weights_are_refused(name, tmp_path, catalog):
    def poison(state):
        state["model.action_out_proj.weight"][0, 0] = torch.nan
        return state

    def lose(state):
        del state["model.action_out_proj.weight"]
        return state

    for change, message in ((poison, "NaN or infinite"), (lose, r"action_out_proj\.weight is missing")):
        directory = copy_case(name, tmp_path / message[:3], tensors=change)
        with pytest.raises(CheckpointError, match=message):
            run(directory, {}, catalog=catalog)


def test_the_padded_length_of_a_state_says_nothing_of_the_robots(tmp_path, catalog):
    """Where lerobot was given no state it writes max_state_dim, and pads whatever comes."""
    directory = random_checkpoint(tmp_path, "pi0", state_dim=8)
    given = random_batch(directory)
    short = {**given, "observation.state": given["observation.state"][:, :5]}
    padded = {**given, "observation.state": torch.nn.functional.pad(short["observation.state"], (0, 3))}
    with engine(directory, catalog=catalog) as running:
        answers = [running.step(LerobotBatch(tensors)).actions for tensors in (short, padded)]
    assert torch.equal(*answers)
