"""Images, state, prompt and actions, against closed forms, brute force and lerobot's definitions."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError, InputError
from phyai_models.processors.actions import absolute_mask, to_absolute
from phyai_models.processors.checks import Checks
from phyai_models.processors.images import CPU, place_images, preprocess, resize_with_pad, to_chw
from phyai_models.processors.lerobot import ProcessorFile
from phyai_models.processors.normalization import STATISTICS, Normalizer
from phyai_models.processors.prompt import discretize_state, pi0_prompt, pi05_prompt
from phyai_models.processors.tokenizer import load_tokenizer
from PIL import Image
from safetensors.torch import save_file


def bilinear(image, height, width):
    """Half-pixel centres, edges repeated, no antialiasing: from the definition, in float64."""
    channels, h, w = image.shape
    out = np.zeros((channels, height, width))
    for y in range(height):
        for x in range(width):
            sy, sx = max((y + 0.5) * h / height - 0.5, 0), max((x + 0.5) * w / width - 0.5, 0)
            y0, x0 = int(sy), int(sx)
            y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
            fy, fx = sy - y0, sx - x0
            top = image[:, y0, x0] * (1 - fx) + image[:, y0, x1] * fx
            bottom = image[:, y1, x0] * (1 - fx) + image[:, y1, x1] * fx
            out[:, y, x] = top * (1 - fy) + bottom * fy
    return out


@pytest.mark.parametrize(("height", "width", "size"), [(7, 7, 12), (20, 10, 8), (5, 9, 8), (9, 5, 8), (30, 31, 6)])
def test_resize_keeps_the_aspect_ratio_and_pads_with_black(height, width, size):
    image = torch.rand(3, height, width, generator=torch.Generator().manual_seed(0))
    got = resize_with_pad(image[None], size)[0].double().numpy()
    ratio = max(height / size, width / size)
    inner_h, inner_w = int(height / ratio), int(width / ratio)
    top, left = (size - inner_h) // 2, (size - inner_w) // 2
    want = np.zeros((3, size, size))
    want[:, top : top + inner_h, left : left + inner_w] = bilinear(image.double().numpy(), inner_h, inner_w)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_an_image_of_the_right_size_is_not_touched():
    image = torch.rand(1, 3, 8, 8)
    assert resize_with_pad(image, 8) is image


def test_preprocessing_maps_black_to_minus_one_and_white_to_one():
    image = torch.stack([torch.zeros(3, 8, 4), torch.ones(3, 8, 4)])
    got = preprocess(image, 8)
    assert torch.equal(got[0], torch.full((3, 8, 8), -1.0))
    assert torch.equal(got[1][:, :, 2:6], torch.ones(3, 8, 4))
    assert torch.equal(got[1][:, :, :2], torch.full((3, 8, 2), -1.0))


def test_an_image_too_elongated_for_a_pixel_is_refused():
    with pytest.raises(InputError, match="too elongated"):
        resize_with_pad(torch.zeros(1, 3, 1, 1000), 8)


def placed(image, camera, size=8):
    out = torch.empty(1, 1, 3, size, size)
    place_images([to_chw(image, camera)[None]], [camera], out, [0], Checks(CPU))
    return out[0, 0]


@pytest.mark.parametrize("form", ["hwc", "chw", "float", "torch", "pil", "view", "read_only"])
def test_every_form_of_an_image_gives_the_same(form):
    pixels = np.random.RandomState(0).randint(0, 256, (4, 6, 3), np.uint8)
    given = {
        "hwc": pixels,
        "chw": pixels.transpose(2, 0, 1),
        "float": pixels / 255,
        "torch": torch.from_numpy(pixels),
        "pil": Image.fromarray(pixels),
        "view": np.ascontiguousarray(pixels[:, ::-1])[:, ::-1],
        "read_only": np.frombuffer(pixels.tobytes(), np.uint8).reshape(pixels.shape),
    }[form]
    got = placed(given, "c", 6)  # as wide as the pixels, so that black is added and nothing is resized
    torch.testing.assert_close(got[:, 1:5] / 2 + 0.5, torch.from_numpy(pixels).permute(2, 0, 1).float() / 255)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4), np.uint8), "give \\[height, width, 3\\]"),
        (np.zeros((4, 4, 4), np.uint8), "neither end is 3"),
        (np.zeros((4, 4, 1), np.uint8), "neither end is 3"),
        (np.zeros((3, 4, 3), np.uint8), "either end could be"),
        (np.zeros((0, 4, 3), np.uint8), "shape"),
        (np.zeros((1, 4, 4, 3), np.uint8), "shape"),
        (np.zeros((4, 4, 3), np.int64), "dtype"),
        (np.full((4, 4, 3), 255.0), "divide by 255"),
        (np.full((4, 4, 3), -0.5), r"span \[-0.5"),
        (np.full((4, 4, 3), np.nan), "span"),
        (None, "None is no image; give a NumPy array, a torch tensor or a PIL image, .* or leave the camera out"),
        ("front.png", "a str is no image; give a NumPy array"),
        ({"pixels": 3}, "a dict is no image"),
        ([[1, 2], [3]], "a list is no image"),
        (np.full((4, 4, 3), None), "an array of dtype object is no image"),
    ],
)
def test_an_unusable_image_is_refused_with_its_camera(image, message):
    with pytest.raises(InputError, match=message) as caught:
        placed(image, "wrist")
    assert "wrist" in str(caught.value)


NUMBERS = st.lists(st.floats(-100, 100, width=32), min_size=4, max_size=4)


@settings(max_examples=50, deadline=None)
@given(
    mode=st.sampled_from(sorted(STATISTICS)),
    low=NUMBERS,
    span=st.lists(st.floats(0.125, 50, width=32), min_size=4, max_size=4),
    x=NUMBERS,
)
def test_unnormalizing_undoes_normalizing(mode, low, span, x):
    low, span, x = torch.tensor(low), torch.tensor(span), torch.tensor(x)
    high = span if mode == "MEAN_STD" else low + span
    normalizer = Normalizer(mode, low, high)
    torch.testing.assert_close(normalizer.unnormalize(normalizer.normalize(x)), x, rtol=1e-4, atol=1e-3)


def test_normalization_by_hand():
    low, high, x = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0]), torch.tensor([2.5, 2.0])
    assert Normalizer("MEAN_STD", low, high).normalize(x).tolist() == pytest.approx([0.5, 0.0])
    assert Normalizer("QUANTILES", low, high).normalize(x).tolist() == [0.5, -1.0]  # a range of zero counts as eps
    assert Normalizer("IDENTITY").normalize(x) is x


@pytest.mark.parametrize(
    ("stats", "message"),
    [
        ({}, "holds no observation.state.q01"),
        ({"q01": torch.zeros(2)}, "holds no observation.state.q99"),
        ({"q01": torch.zeros(3), "q99": torch.ones(2)}, "2 finite numbers"),
        ({"q01": torch.tensor([0.0, torch.nan]), "q99": torch.ones(2)}, "2 finite numbers"),
    ],
)
def test_missing_statistics_are_an_error_not_the_identity(stats, message):
    named = {f"observation.state.{k}": v for k, v in stats.items()}
    with pytest.raises(CheckpointError, match=message):
        Normalizer.build("observation.state", "QUANTILES", 2, named, "here.json")


@settings(max_examples=100, deadline=None)
@given(st.floats(-3, 3, width=32))
def test_state_bins_by_definition(value):
    (got,) = discretize_state(torch.tensor([value]))
    want = max(b for b in range(-1, 256) if b == -1 or value >= -1 + b * 2 / 256)
    assert got == want


def test_prompts():
    assert pi05_prompt(" pick_up\nthe cup", torch.tensor([-1.0])) == "Task: pick up the cup, State: 0;\nAction: "
    assert pi0_prompt("go\n") == "go\n"
    assert pi0_prompt("go") == "go\n"


@pytest.mark.parametrize("text", ["", "   ", "\n", None, 7])
@pytest.mark.parametrize("prompt", [pi0_prompt, lambda text: pi05_prompt(text, torch.zeros(1))])
def test_an_empty_instruction_is_refused(text, prompt):
    with pytest.raises(InputError, match="say in words"):
        prompt(text)


def test_a_missing_tokenizer_says_which_file_to_put_where(tmp_path):
    with pytest.raises(CheckpointError, match=r"tokenizer\.json or tokenizer\.model") as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_broken_tokenizer_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match=name):
        load_tokenizer(tmp_path)


def test_a_sentencepiece_model_gets_its_beginning_of_sequence(tmp_path):
    import sentencepiece

    text = tmp_path / "text.txt"
    text.write_text("pick up the cup\nput down the cup\nwave to the robot\n" * 5)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "tokenizer"), vocab_size=40, minloglevel=2, hard_vocab_limit=False
    )
    ids = load_tokenizer(tmp_path).encode("pick up")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert ids == [processor.bos_id(), *processor.encode("pick up")]


def test_relative_actions():
    relative = absolute_mask(3, ["x", "Y", "Left_Gripper"], ["gripper"])
    got = to_absolute(torch.ones(2, 3), torch.tensor([1.0, 2.0, 3.0, 4.0]), relative)
    assert got.tolist() == [[2.0, 3.0, 1.0]] * 2
    assert absolute_mask(2, None, ["gripper"]).tolist() == [True, True]


def write_processor(path, steps):
    path.write_text(json.dumps({"name": "p", "steps": steps}))
    return path


def test_a_processor_file_with_its_statistics(tmp_path):
    save_file({"observation.state.mean": torch.ones(2)}, tmp_path / "s.safetensors")
    step = {
        "registry_name": "normalizer_processor",
        "config": {"norm_map": {"STATE": "MEAN_STD"}, "eps": 1e-6},
        "state_file": "s.safetensors",
    }
    file = ProcessorFile.load(write_processor(tmp_path / "p.json", [step]))
    assert file.normalization("normalizer_processor") == ({"STATE": "MEAN_STD"}, 1e-6)
    assert file.stats["observation.state.mean"].tolist() == [1.0, 1.0]
    assert ProcessorFile.load(tmp_path / "absent.json") is None


@pytest.mark.parametrize(
    "steps",
    [
        [{"registry_name": "add_a_surprise", "config": {}}],
        [{"class": "some.module.Step"}],
        [7],
        "no list",
        [{"registry_name": "normalizer_processor", "state_file": "../outside.safetensors"}],
        [{"registry_name": "normalizer_processor", "state_file": "absent.safetensors"}],
    ],
)
def test_a_processor_file_that_cannot_be_honoured_is_refused(tmp_path, steps):
    with pytest.raises(CheckpointError):
        ProcessorFile.load(write_processor(tmp_path / "p.json", steps))


def test_images_go_to_their_places_and_the_others_are_blank():
    images = [torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(size)) for size in (8, 8, 4)]
    out = torch.full((5, 2, 3, 8, 8), 9.0)
    place_images(images, ["a", "b", "c"], out, [0, 3, 4], Checks(CPU))
    for place, image in zip((0, 3, 4), images, strict=True):
        assert torch.equal(out[place], preprocess(image, 8))
    assert (out[1:3] == -1).all()
