"""The demonstration and the checkpoint that it runs."""

import json
from pathlib import Path

import pytest
import torch
from phyai.cli import main
from phyai_models.demo.make_checkpoint import make_checkpoint
from phyai_models.pi05 import Observation
from pi_cases import engine
from PIL import Image
from safetensors.torch import load_file

TINY = Path(__file__).parents[2] / "examples" / "pi05-tiny"


def test_the_shipped_checkpoint_is_what_its_script_makes(tmp_path):
    make_checkpoint(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in TINY.iterdir()}
    for path in TINY.iterdir():
        if path.suffix == ".json":
            assert json.loads((tmp_path / path.name).read_text()) == json.loads(path.read_text()), path.name
        else:
            got, want = load_file(tmp_path / path.name), load_file(path)
            assert got.keys() == want.keys()
            for name in want:
                torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-4)


def test_the_shipped_checkpoint_is_small():
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 3_000_000


def test_its_flow_forgets_the_noise(catalog):
    """The velocity is (x - a) / t: the noise vanishes, whatever the number of steps."""
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    with engine(TINY, catalog=catalog) as running:
        chunks = [
            running.step(Observation({"base": image}, "go", [0.0] * 8, torch.full((50, 32), level)))
            for level in (-1.0, 1.0)
        ]
    difference = (chunks[0].actions - chunks[1].actions).abs().max()
    assert difference < 0.3  # the noises differ by 2, and actions have a span of 0.6 to 1.2


def test_the_demonstration_compares_two_policies(tmp_path, capsys, monkeypatch):
    pytest.importorskip("skimage")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(TINY.parents[1])
    assert main(["demo", "--out", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    first, second = answer["chunks"].values()
    assert torch.tensor(first).shape == (50, 7)
    worst = (torch.tensor(first) - torch.tensor(second)).abs().max()
    assert float(worst) == pytest.approx(answer["largest_difference"])
    assert 0 < worst < 0.2  # int8 weights against float32
    default, other = answer["decisions"].values()
    vision = {row["kernel"].split(".")[0] for row in other if row["role"] == "vision"}
    assert vision == {"reference", "decomposed"}  # chains of reference kernels
    assert "reference.gemm.weight_only" in {row["kernel"] for row in other if row["role"] == "expert"}
    assert "reference.gemm.weight_only" not in {row["kernel"] for row in default}
    with Image.open(answer["picture"]) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300


def test_without_the_checkpoint_the_error_says_how_to_get_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 1
    assert "make_checkpoint" in capsys.readouterr().err
