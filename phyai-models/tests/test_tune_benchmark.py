"""``benchmarks/tune_pi05.py`` at a small size on a CPU, and ``benchmarks/tune_map.py``, which draws its store."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from phyai.tune import Store
from pi_cases import random_checkpoint

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tools():
    found = {}
    for name in ("tune_map", "tune_pi05"):
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        found[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    yield found
    for name in found:
        del sys.modules[name]


@pytest.fixture(scope="module")
def tuned(tools, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    checkpoint = random_checkpoint(folder / "checkpoint", "pi05", cameras=1, vocabulary=100)
    tools["tune_pi05"].main([
        "--device", "cpu", "--dtype", "fp32", "--checkpoint", str(checkpoint), "--seconds", "6", "--steps", "5",
        "--out", str(folder / "tune.json"),
    ])  # fmt: skip
    return folder


def test_the_figures_hold_the_static_choice_of_every_measured_call(tuned):
    figures = json.loads((tuned / "tune.json").read_text())
    stored = Store(tuned / "tune.store.json").read().measurements
    assert {row["key"] for row in figures["static"]} == {m.key for m in stored}
    assert stored
    for row in figures["static"]:
        assert row["us"][row["fastest"]] == min(row["us"].values())
        assert row["ratio"] == pytest.approx(row["us"][row["static"]] / row["us"][row["fastest"]], abs=1e-3)
    within = figures["static choice within margin of the fastest"]
    assert figures["checks"]["static choice within margin of the fastest, of each key"] == all(within.values())
    assert figures["command"].startswith("python benchmarks/tune_pi05.py --device cpu")


def test_the_store_is_drawn_again_without_the_device(tools, tuned, capsys):
    pytest.importorskip("matplotlib")
    png, out = tuned / "again.png", tuned / "again.json"
    store = str(tuned / "tune.store.json")
    status = tools["tune_map"].main([store, "--device", "cpu", "--png", str(png), "--json", str(out)])
    assert png.read_bytes()[:4] == b"\x89PNG"
    rows = json.loads(out.read_text())
    assert rows == json.loads((tuned / "tune.json").read_text())["static"]
    assert status == (0 if all(row["within"] for row in rows) else 1)
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


def test_a_static_choice_that_is_slower_beyond_the_noise_is_said_to_be(tools, tuned, tmp_path):
    """The reference is no slower than itself, and slower than torch where torch is asked for."""
    lines = (tuned / "tune.store.json").read_text()
    stored = Store(tuned / "tune.store.json").read().measurements
    assert any(id.startswith("torch.") for m in stored for id in m.usable())
    policy = tmp_path / "slow.yaml"
    policy.write_text("schema: phyai.kernel/v1\nrules:\n- {id: slow, match: {}, prefer: 'reference.*'}\n")
    out = tmp_path / "slow.json"
    store = tmp_path / "store.json"
    store.write_text(lines)
    assert tools["tune_map"].main([str(store), "--device", "cpu", "--policy", str(policy), "--json", str(out)]) == 1
    slow = [row for row in json.loads(out.read_text()) if not row["within"]]
    assert slow
    assert all(row["static"].startswith("reference.") and row["ratio"] > 1.02 for row in slow)


def test_a_file_that_is_no_store_is_refused(tools, tmp_path):
    from phyai.tune import TuneError

    with pytest.raises(TuneError, match="holds no measurement"):
        tools["tune_map"].main([str(tmp_path / "none.json")])
