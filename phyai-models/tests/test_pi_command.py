"""``phyai run pi05`` and ``phyai run pi0`` as a user types them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from phyai.cli import main
from pi_cases import CASES, REFERENCE, case, cosine, family_of, relative_error
from PIL import Image
from safetensors.torch import load_file, save_file

TINY = Path(__file__).parents[2] / "examples" / "pi05-tiny"


def phyai(capsys, *words):
    status = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return status, out, err


def batch(capsys, directory, inputs, out, *more):
    """``phyai run`` on a batch in lerobot's names."""
    return phyai(capsys, "run", "pi05", "--checkpoint", directory, "--inputs", inputs, "--out", out, *more)


@pytest.fixture
def photographs(tmp_path):
    generator = np.random.RandomState(0)
    paths = []
    for name in ("one.png", "two.jpg"):
        Image.fromarray(generator.randint(0, 256, (40, 60, 3), np.uint8)).save(tmp_path / name)
        paths.append(tmp_path / name)
    return paths


@pytest.mark.parametrize("name", CASES)
def test_a_trace_holds_every_stage_of_the_case(name, tmp_path, capsys):
    directory, _, expected = case(name)
    out = tmp_path / "out.safetensors"
    status, printed, _ = phyai(
        capsys, "run", family_of(directory), "--checkpoint", directory,
        "--inputs", directory / "inputs.safetensors", "--out", out, "--trace",
    )  # fmt: skip
    assert status == 0
    assert "attention_paged" in printed
    got = load_file(out)
    assert set(got) == set(expected)
    for stage, value in expected.items():
        assert got[stage].shape == value.shape
        if value.dtype == torch.bool:
            assert torch.equal(got[stage], value)
        elif name == "pi05_c":
            assert cosine(got[stage], value) > 0.999
        else:
            assert got[stage].dtype == torch.float32
            assert relative_error(got[stage], value) < 1e-5


def test_without_a_trace_only_actions_are_written(tmp_path, capsys):
    directory, _, expected = case("pi0_a")
    out = tmp_path / "out.safetensors"
    assert (
        phyai(
            capsys, "run", "pi0", "--checkpoint", directory, "--inputs", directory / "inputs.safetensors", "--out", out
        )[0]
        == 0
    )
    assert list(load_file(out)) == ["actions"]
    assert relative_error(load_file(out)["actions"], expected["actions"]) < 1e-5


def test_savings_can_be_turned_off(tmp_path, capsys):
    directory, _, expected = case("pi05_a")
    out = tmp_path / "out.safetensors"
    status, *_ = batch(capsys, directory, directory / "inputs.safetensors", out, "--no-savings")
    assert status == 0
    assert relative_error(load_file(out)["actions"], expected["actions"]) < 1e-5


def observe(photographs, *more):
    return (
        "run", "pi05", "--checkpoint", TINY, "--image", f"base={photographs[0]}", "--image", f"wrist={photographs[1]}",
        "--instruction", "pick up the cup", "--state", "0.1,0.2,0.3,0,0,-0.5,0,1", "--steps", "2", "--seed", "3", *more,
    )  # fmt: skip


def test_one_observation_prints_actions_and_decisions(photographs, capsys):
    status, out, _ = phyai(capsys, *observe(photographs))
    assert status == 0
    assert "role" in out
    assert "expert" in out
    assert "50 × 7" in out


def test_ops_that_only_the_reference_has_are_told_in_one_line(photographs, capsys):
    status, _, err = phyai(capsys, *observe(photographs))
    assert status == 0
    assert err.count("WARNING") == err.count("only reference kernels are left for") <= 1


def test_a_seed_that_torch_does_not_take_is_refused(photographs, capsys):
    words = ("run", "pi05", "--checkpoint", TINY, "--image", f"base={photographs[0]}", "--instruction", "wave")
    status, _, err = phyai(capsys, *words, "--state", "0,0,0,0,0,0,0,1", "--seed", 2**64)
    assert status == 1
    assert f"seed={2**64}; give a whole number from -2**63 to 2**64-1" in err


def test_json_holds_the_same_and_a_seed_repeats_it(photographs, capsys):
    answers = [json.loads(phyai(capsys, *observe(photographs, "--json"))[1]) for _ in range(2)]
    assert answers[0]["actions"] == answers[1]["actions"]
    assert np.array(answers[0]["actions"]).shape == (50, 7)
    assert {"role", "op", "kernel", "layout", "calls", "why", "layer"} == set(answers[0]["decisions"][0])


def test_a_policy_changes_the_kernels(photographs, tmp_path, capsys):
    policy = tmp_path / "reference.yaml"
    policy.write_text(REFERENCE)
    answer = json.loads(phyai(capsys, *observe(photographs, "--json", "--policy", policy))[1])
    assert {row["kernel"] for row in answer["decisions"] if row["op"] == "gemm"} == {"reference.gemm"}
    assert all("reference.yaml:3" in row["why"] for row in answer["decisions"] if row["op"] == "gemm")


def test_rules_that_matched_nothing_are_said(photographs, tmp_path, capsys):
    policy = tmp_path / "idle.yaml"
    policy.write_text("schema: phyai.kernel/v1\nrules:\n- {id: idle, match: {op: conv3d}, prefer: 'reference.*'}\n")
    _, _, err = phyai(capsys, *observe(photographs, "--policy", policy))
    assert "idle" in err
    assert "matched no call" in err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--image", "left=nowhere.png"), 1, "nowhere.png cannot be read"),
        (("--image", "base"), 2, "CAMERA=FILE"),
        (("--image", "wrist={0}"), 2, "given twice"),
        (("--image", "left={0}"), 1, "unknown camera 'left'"),
        (("--state", "1,two"), 2, "give numbers"),
        (("--state", "1,2"), 1, "8 numbers"),
        (("--instruction", " "), 1, "say in words"),
        (("--steps", "0"), 2, "--steps: 0; give a whole number from 1 to 1000"),
        (("--steps", "1000000000"), 2, "--steps: 1000000000; give a whole number from 1 to 1000: every step takes"),
        (("--dtype", "int8"), 1, "params_dtype"),
        (("--device", "tpu"), 1, "tpu"),
        (("--checkpoint", "/nowhere"), 1, "config.json cannot be read"),
        (("--policy", "/nowhere.yaml"), 1, "/nowhere.yaml"),
        (("--inputs", "x.safetensors", "--out", "y"), 2, "leave out"),
        (("--trace",), 2, "--trace goes with"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(photographs, capsys, words, status, message):
    got, _, err = phyai(capsys, *observe(photographs, *(w.format(*photographs) for w in words)))
    assert got == status
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize("given", [(), ("--instruction", "go")])
def test_an_incomplete_observation_says_what_to_give(capsys, given):
    status, _, err = phyai(capsys, "run", "pi05", "--checkpoint", TINY, *given)
    assert status == 2
    assert "--image CAMERA=FILE" in err


def test_another_family_than_the_checkpoints_is_refused(tmp_path, capsys):
    directory = case("pi0_a")[0]
    status, _, err = batch(capsys, directory, directory / "inputs.safetensors", tmp_path / "o")
    assert status == 1
    assert "is a pi0 checkpoint" in err


def test_damaged_inputs_are_refused(tmp_path, capsys):
    directory = case("pi05_a")[0]
    (tmp_path / "in.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    status, _, err = batch(capsys, directory, tmp_path / "in.safetensors", tmp_path / "o")
    assert status == 1
    assert "truncated" in err


def test_an_output_that_cannot_be_written_is_said_and_leaves_nothing(tmp_path, capsys):
    directory = case("pi05_a")[0]
    status, _, err = batch(capsys, directory, directory / "inputs.safetensors", tmp_path / "no" / "o")
    assert status == 1
    assert "cannot be written" in err
    assert "WARNING" not in err  # said before the model is loaded
    assert list(tmp_path.iterdir()) == []


def test_the_noise_of_the_inputs_is_optional(tmp_path, capsys):
    directory, inputs, _ = case("pi05_a")
    save_file({k: v for k, v in inputs.items() if k != "noise"}, tmp_path / "in.safetensors")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert batch(capsys, directory, tmp_path / "in.safetensors", tmp_path / name, "--seed", seed)[0] == 0
    a, b, c = (load_file(tmp_path / name)["actions"] for name in "abc")
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_listing_models_imports_no_tensor_library():
    code = (
        "import sys; from phyai.cli import main; import contextlib, io\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out: main(['run', '--json'])\n"
        "assert 'pi05' in out.getvalue(), out.getvalue()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
