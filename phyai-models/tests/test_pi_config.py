"""What a checkpoint may say of itself, and what is refused."""

import json

import pytest
from phyai.errors import CheckpointError
from phyai_models.pi.config import GEMMA_VARIANTS, PiConfig, SiglipConfig
from pi_cases import DATA, copy_case


def test_a_standard_checkpoint_needs_no_arch_file(tmp_path):
    config = json.loads((DATA / "pi05_a" / "config.json").read_text()) | {"image_resolution": [224, 224]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    parsed = PiConfig.load(tmp_path)
    assert parsed.language_model == GEMMA_VARIANTS["gemma_2b"]
    assert parsed.expert == GEMMA_VARIANTS["gemma_300m"]
    assert parsed.vision == SiglipConfig()
    assert (parsed.vision.patches, parsed.vocab_size) == (256, 257_152)


def test_what_a_minimal_configuration_leaves_out_has_lerobots_defaults(tmp_path):
    config = {"type": "pi0", "input_features": {"observation.images.top": {"type": "VISUAL", "shape": [3, 480, 640]}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    parsed = PiConfig.load(tmp_path)
    assert (parsed.chunk_size, parsed.num_inference_steps, parsed.tokenizer_max_length) == (50, 10, 48)
    assert (parsed.state_dim, parsed.action_dim, parsed.dtype) == (32, 32, "float32")
    assert parsed.normalization["STATE"] == "MEAN_STD"


@pytest.mark.parametrize(
    ("config", "arch", "message"),
    [
        ({"type": "act"}, {}, "type 'act'"),
        ({"type": None}, {}, "pi05 and pi0"),
        ({"image_resolution": [28, 14]}, {}, "not square"),
        ({"image_resolution": [42, 42]}, {}, "images of 42"),
        ({"dtype": "int4"}, {}, "allowed are float32 and bfloat16"),
        ({"n_obs_steps": 2}, {}, "more than one moment"),
        ({"chunk_size": 0}, {}, "chunk_size should be a whole number from 1 to 8192, and is 0"),
        ({"chunk_size": 1_000_000_000}, {}, "from 1 to 8192, and is 1000000000; memory and time grow"),
        ({"chunk_size": True}, {}, "chunk_size should be a whole number"),
        ({"tokenizer_max_length": 10**9}, {}, "tokenizer_max_length should be a whole number from 1 to 8192"),
        ({"num_inference_steps": 10**9}, {}, "from 1 to 1000, and is 1000000000; memory and time grow"),
        ({"empty_cameras": 10**9}, {}, "empty_cameras is 1000000000; a model has at most 64 cameras"),
        ({"empty_cameras": -1}, {}, "empty_cameras is -1"),
        (
            {"empty_cameras": 60, "image_resolution": [560, 560]},
            {"vision": {"hidden_size": 32, "image_size": 560}},
            r"62 cameras of 1600 patches, .* make \d+ tokens of a request; at most 65536",
        ),
        ({}, {"vision": {"hidden_size": 32, "image_size": 28, "num_hidden_layers": 10**9}}, "from 1 to 1024"),
        ({"chunk_size": "50"}, {}, "chunk_size"),
        ({"num_inference_steps": -1}, {}, "num_inference_steps"),
        ({"input_features": {}}, {}, "names no image"),
        ({"input_features": {"x": 3}}, {}, "malformed"),
        ({"max_state_dim": 4}, {}, "exceed max_state_dim"),
        ({"normalization_mapping": {"STATE": "LOG"}}, {}, "'LOG'"),
        ({}, {"family": "pi0"}, "arch.json of family pi0"),
        ({}, {"language_model": {"width": 64}}, "malformed"),
        (
            {},
            {"expert": {"width": 32, "depth": 3, "mlp_dim": 64, "num_heads": 8, "num_kv_heads": 1, "head_dim": 16}},
            "one depth",
        ),
        ({}, {"vision": {"hidden_size": 30, "num_attention_heads": 4, "image_size": 28}}, "divide hidden_size"),
        ({}, {"vision": {"hidden_size": 32, "num_attention_heads": 4, "image_size": 28, "patch_size": 29}}, "must fit"),
        ({"min_period": 0}, {}, "min_period should be a positive number"),
        ({"max_period": float("inf")}, {}, "max_period should be a positive number"),
        ({}, {"vocab_size": 0}, "vocab_size"),
    ],
)
def test_a_configuration_that_cannot_be_honoured_is_refused(tmp_path, config, arch, message):
    directory = copy_case("pi05_a", tmp_path, config=config, arch=arch)
    with pytest.raises(CheckpointError, match=message):
        PiConfig.load(directory)


def test_pixels_beyond_the_last_whole_patch_are_not_looked_at():
    assert SiglipConfig(image_size=30, patch_size=14).patches == 4  # as a convolution of that stride has it


def test_an_unknown_variant_is_refused(tmp_path):
    config = json.loads((DATA / "pi05_a" / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "image_resolution": [224, 224], "paligemma_variant": "gemma_9b"})
    )
    with pytest.raises(CheckpointError, match="gemma_9b"):
        PiConfig.load(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00", "nul", '"' + "x" * 100])
def test_a_malformed_file_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        PiConfig.load(tmp_path)


def test_an_absurdly_large_file_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate((64 << 20) + 1)  # a hole: no disk is used
    with pytest.raises(CheckpointError, match=r"config\.json has more than 67108864 bytes"):
        PiConfig.load(tmp_path)


def test_another_family_than_asked_for_is_refused():
    with pytest.raises(CheckpointError, match="is a pi0 checkpoint, and pi05 was asked for"):
        PiConfig.load(DATA / "pi0_a", "pi05")
