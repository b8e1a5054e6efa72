"""``benchmarks/pi05_dispatch.py`` and ``benchmarks/pi05_reproducible.py`` at a small size on a CPU; and which kernels
policies that ask for reproducible ones, and π0's, are given on an H200."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from phyai.policy import load_policy, parse_policy
from pi_cases import random_checkpoint
from simulated import decisions

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a script as from its own folder, where its imports are, and gives the cases of its report."""
    monkeypatch.syspath_prepend(BENCHMARKS)

    def run(name, *arguments):
        checkpoint = random_checkpoint(tmp_path, "pi05", cameras=2)
        out = tmp_path / "out.json"
        importlib.import_module(name).main([
            "--out", str(out), "--checkpoint", str(checkpoint), "--device", "cpu", "--dtype", "fp32", "--cameras", "2",
            "--prompt-tokens", "7", "--steps", "2", "--runs", "2", *arguments,
        ])  # fmt: skip
        return json.loads(out.read_text())["cases"]

    return run


def test_a_flat_script_computes_what_the_runner_does(run):
    found = run("pi05_dispatch")
    assert set(found) == {"one_launch", "layer_by_layer"}
    for case in found.values():
        assert case["same_actions"]
        assert case["ratio"] == pytest.approx(case["runner_ms"] / case["script_ms"])
        assert case["calls_of_kernels"] > 100


def test_the_same_requests_get_the_same_bits(run):
    found = run("pi05_reproducible", "--case", "policy", "--case", "reproducible")
    for case in found.values():
        assert case["same_bits_in_one_engine"]
        assert case["same_bits_in_two_engines"]
        assert case["answers_differ_between_requests"]
        assert case["not_declared_reproducible"] == []


def test_what_a_step_costs_on_the_host_is_told_part_by_part(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("pi05_host")
    monkeypatch.setattr(script, "EDGES", (28,))
    out = tmp_path / "out.json"
    script.main(["--out", str(out), "--runs", "3"])
    found = json.loads(out.read_text())["microseconds"]["28x28"]
    assert set(found) == {"lerobot_float32", "lerobot_uint8", "device_batch", "lerobot_changing_lengths"}
    for spans in found.values():
        assert all(spans[name] > 0 for name in script.SPANS)
        assert min(spans[name] for name in script.SPANS) < spans["least_step"] <= spans["step"]


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("batch", [1, 8])
def test_an_h200_has_a_fast_reproducible_kernel_for_every_call(family, batch, catalog):
    pytest.importorskip("phyai_backend_cuda")
    pytest.importorskip("phyai_backend_flashinfer")
    policy = parse_policy(b"schema: phyai.kernel/v1\ndefaults: {numerics: reproducible}\n", file="p", catalog=catalog)
    found = decisions("h200", policy.policy, catalog, family=family, batch=batch)
    ids = {(call, id) for call, chosen in found.items() for id in chosen if not id.startswith("decomposed.")}
    assert len(ids) > 10
    assert all(catalog.kernel(id).numerics.reproducible for _, id in ids)
    assert not [(call, id) for call, id in ids if id.startswith("reference.")]


@pytest.mark.parametrize("fixed_lengths", [False, True], ids=["buckets", "exact"])
def test_pi0s_policy_gives_every_call_of_pi0_what_was_measured_for_its_shapes(fixed_lengths, catalog):
    pytest.importorskip("phyai_backend_cuda")
    pytest.importorskip("phyai_backend_flashinfer")
    loaded = load_policy(BENCHMARKS.parent / "policies" / "pi0" / "h200_bf16.yaml", catalog=catalog)
    assert not loaded.warnings
    found = decisions("h200", loaded.policy, catalog, family="pi0", fixed_lengths=fixed_lengths)
    assert found["prefix", "attention_paged"] == ["cuda.attention_paged.prefill"]
    assert found["expert", "attention_paged"] == ["cuda.attention_paged.split"]
    assert found["expert", "gated_mlp"] == ["cuda.gated_mlp.skinny_16bit"]
    assert found["expert", "rms_norm_add"] == ["cuda.rms_norm_add.overlap"]
    assert found["vision", "attention"] == ["cuda.attention.short"]
    assert not [call for call, ids in found.items() if any(id.startswith("reference.") for id in ids)]
