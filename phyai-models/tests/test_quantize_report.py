"""What quantizing costs, measured: layers, answers, and the mixture that a budget allows."""

import itertools
import json
import math

import pytest
import torch
from fake_study import LAYERS, OFFSETS
from phyai.catalog import Catalog
from phyai.cli.app import main
from phyai.engine import ModelPlugin
from phyai.errors import CheckpointError, InputError
from phyai.plugins import Plugin, PluginStatus
from phyai.policy import parse_policy
from phyai_models.quantized.groups import groups_of
from phyai_models.quantized.mixed_policy import mixed_policy
from phyai_models.quantized.report import Answers, sqnr
from phyai_models.quantized.sensitivity import measure_sensitivity
from phyai_models.quantized.watching import shards
from pi_cases import copy_case
from safetensors.torch import load_file, save_file

SIZES = {"a": (64, 64), "b": (32, 64), "c": (64, 128)}
FAKE = ModelPlugin(
    "fake", "a model in closed form", "fake_study:FakeStudy", "fake_study:study", study="fake_study:study"
)
CATALOG = Catalog.build([Plugin(PluginStatus("fake"), models=(FAKE,))])


def policy(dtype, names=LAYERS):
    rule = {"match": {"name": list(names)}, "scheme": {"weight": {"dtype": dtype}}}
    return parse_policy(json.dumps({"schema": "phyai.kernel/v1", "quantization": {"rules": [rule]}})).policy


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "fake-model"
    folder.mkdir()
    (folder / "fake").touch()
    save_file({f"{n}.weight": torch.randn(s).bfloat16() for n, s in SIZES.items()}, folder / "model.safetensors")
    return folder


def layer_bytes(name, bits):
    n, k = SIZES[name]
    return n * k * bits // 8 + 4 * n if bits < 16 else n * k * 2


def exact(mixture):
    """Worst cosine and bytes of a mixture of bits, in closed form."""
    moved = sum(OFFSETS[n, b] ** 2 for n, b in zip(LAYERS, mixture, strict=True) if b < 16)
    return 1 / math.sqrt(1 + moved), sum(layer_bytes(n, b) for n, b in zip(LAYERS, mixture, strict=True))


@pytest.mark.parametrize("budget", [0.9, 0.96, 0.99, 0.9995, 0.99999])
def test_the_mixture_is_the_smallest_that_meets_the_budget(budget, checkpoint):
    policies = {"w4": policy("int4"), "w8": policy("int8")}
    found = measure_sensitivity(checkpoint, policies, budget, catalog=CATALOG, samples=3, tries=27)
    bits = [16 if o is None else (4, 8)[o] for o in found.chosen.mixture]
    best = min(size for m in itertools.product((4, 8, 16), repeat=3) for cos, size in [exact(m)] if cos >= budget)
    assert found.chosen.worst == pytest.approx(exact(bits)[0], abs=1e-7)
    assert found.chosen.nbytes == exact(bits)[1] == best


def test_groups_are_ranked_by_what_a_byte_costs(checkpoint):
    found = measure_sensitivity(checkpoint, {"w4": policy("int4")}, 0.99, catalog=CATALOG, samples=2)
    price = {n: (1 - 1 / math.sqrt(1 + OFFSETS[n, 4] ** 2)) / (layer_bytes(n, 16) - layer_bytes(n, 4)) for n in LAYERS}
    ranked = [found.groups[g].name.rpartition(".")[2] for g, _ in found.ranking()]
    assert ranked == sorted(LAYERS, key=price.__getitem__)
    assert found.together.worst == pytest.approx(exact((4, 4, 4))[0])


def test_a_budget_that_nothing_meets_keeps_everything(checkpoint):
    found = measure_sensitivity(checkpoint, {"w4": policy("int4")}, 1.0, catalog=CATALOG, samples=2, tries=2)
    assert found.chosen.mixture == (None, None, None)
    assert found.chosen.worst == 1.0


def test_the_file_that_is_written_says_the_mixture_and_why(checkpoint):
    policies = {"w4": policy("int4"), "w8": policy("int8")}
    found = measure_sensitivity(checkpoint, policies, 0.99, catalog=CATALOG, samples=2)
    text = mixed_policy(found, policies["w4"], checkpoint, "made-up observations")
    mixed = parse_policy(text).policy
    again = {g.name: g.options[0].scheme.name for g in groups_of(checkpoint, _study(), {"mixed": mixed})}
    assert again == {name: scheme for name, scheme in found.named(found.chosen.mixture).items() if scheme}
    assert f"worst {found.chosen.worst:.6f}" in text
    for g, group in enumerate(found.groups):
        assert f"# {group.name}, 1 layers: " in text
        assert f"worst cosine of {found.alone[g, 0].worst:.6f}" in text


def _study():
    from fake_study import FakeStudy

    return FakeStudy()


def test_a_checkpoint_that_no_model_claims_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no installed model claims it"):
        measure_sensitivity(tmp_path, {"w4": policy("int4")}, 0.99, catalog=CATALOG)


@pytest.mark.parametrize("budget", [0.0, 1.5])
def test_a_budget_is_a_cosine(budget, checkpoint):
    with pytest.raises(InputError, match=r"a cosine in \(0, 1\]"):
        measure_sensitivity(checkpoint, {"w4": policy("int4")}, budget, catalog=CATALOG)


def test_sqnr_of_known_noise():
    signal = torch.tensor([3.0, 4.0])
    assert sqnr(signal, signal + torch.tensor([0.3, 0.4])) == pytest.approx(20.0, abs=1e-5)
    assert sqnr(signal, signal) == math.inf


def test_answers_are_compared_sample_by_sample():
    want = torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]])
    got = torch.tensor([[[1.0, 0.0]], [[2.0, 2.0]]])
    found = Answers.between(got, want)
    assert found.worst == 1
    assert found.cosine == pytest.approx((1.0, math.sqrt(0.5)))
    assert found.error == pytest.approx((0.0, 1.0))


def test_products_inside_composites_are_found_by_their_shards():
    known = frozenset({"l.0.self_attn.q_proj", "l.0.self_attn.k_proj", "l.0.mlp.down_proj", "l.0.self_attn.o_proj"})
    assert shards("l.0.self_attn.qkv", known) == ("l.0.self_attn.q_proj", "l.0.self_attn.k_proj")
    assert shards("l.0.self_attn.qkv_proj", known) == ("l.0.self_attn.q_proj", "l.0.self_attn.k_proj")
    assert shards("l.0.mlp.down", known) == ("l.0.mlp.down_proj",)
    assert shards("l.0.self_attn.o_proj", known) == ("l.0.self_attn.o_proj",)


def run_json(arguments, capsys):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_layers_of_any_checkpoint_are_measured_on_given_inputs(tmp_path, capsys):
    folder = tmp_path / "any"
    folder.mkdir()
    weight = torch.randn(16, 32, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    save_file({"a.weight": weight}, folder / "model.safetensors")
    save_file({"a.x": x}, tmp_path / "x.safetensors")
    (tmp_path / "p.yaml").write_text(policy("int8").to_yaml())
    out = tmp_path / "out"
    body = run_json(
        ["quantize", folder, "--policy", tmp_path / "p.yaml", "--out", out, "--inputs", tmp_path / "x.safetensors",
         "--report", tmp_path / "r.json", "--report", tmp_path / "r.html"], capsys,
    )  # fmt: skip
    step = weight.abs().amax(1, keepdim=True) / 127.5
    rounded = (weight / step).round().clamp(-128, 127) * step
    (layer,) = body["report"]["layers"]
    assert layer["weight_sqnr_db"] == pytest.approx(sqnr(weight, rounded), abs=1e-3)
    assert layer["output_sqnr_db"] == pytest.approx(sqnr(x @ weight.T, x @ rounded.T), abs=1e-3)
    assert (layer["bytes_before"], layer["bytes_after"]) == (16 * 32 * 4, 16 * 32 + 16 * 4 + 16)
    assert json.loads((tmp_path / "r.json").read_text()) == body["report"]
    assert "no installed model claims this checkpoint" in (tmp_path / "r.html").read_text()


def test_a_pi_checkpoint_is_measured_by_its_answers(tmp_path, capsys):
    source = copy_case("pi05_a", tmp_path / "source")
    rule = {"match": {"glob": "*.expert.*_proj"}, "scheme": {"weight": {"dtype": "int4", "group_size": 16}}}
    text = json.dumps({"schema": "phyai.kernel/v1", "quantization": {"rules": [rule]}})
    (tmp_path / "p.yaml").write_text(text)
    pytest.importorskip("matplotlib")
    body = run_json(
        ["quantize", source, "--policy", tmp_path / "p.yaml", "--out", tmp_path / "out", "--samples", 3,
         "--report", tmp_path / "r.png"], capsys,
    )  # fmt: skip
    answers = body["report"]["answers"]
    assert len(answers["cosine"]) == answers["samples"] == 3
    assert answers["worst_cosine"] == min(answers["cosine"]) < 1.0
    assert answers["mean_cosine"] == pytest.approx(sum(answers["cosine"]) / 3)
    seen = [layer["output_sqnr_db"] for layer in body["report"]["layers"]]
    assert None not in seen  # every projection of the expert runs
    assert all(10 < decibels < 45 for decibels in seen)
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    state = load_file(tmp_path / "out" / "model.safetensors")
    assert body["bytes_after"] == sum(tensor.nbytes for tensor in state.values())


def test_a_report_of_an_unknown_kind_is_refused_before_the_work(tmp_path, capsys):
    assert main(["quantize", str(tmp_path), "--policy", "p.yaml", "--out", "o", "--report", "r.txt"]) == 2
    assert "must end in .json, .html or .png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("dtype", "report", "out", "words"),
    [
        (
            {"dtype": "int4", "group_size": 128},
            "r.json",
            "out",
            "inputs are no multiple of the weight's group_size",
        ),
        ("int8", "no/r.json", "out", "r.json cannot be written: there is no folder"),
        ("int8", "r.json", ".", "exists and is not overwritten"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_original_is_run(
    tmp_path, capsys, monkeypatch, dtype, report, out, words
):
    def run(*_):
        raise AssertionError("the original was run")

    monkeypatch.setattr("phyai_models.quantized.report.Observer.of", run)
    rule = {"match": {"glob": "*.expert.*_proj"}, "scheme": {"weight": dtype}}
    (tmp_path / "p.yaml").write_text(json.dumps({"schema": "v1", "quantization": {"rules": [rule]}}))
    source = copy_case("pi05_a", tmp_path / "source")
    given = ("--policy", tmp_path / "p.yaml", "--out", tmp_path / out, "--report", tmp_path / report)
    assert main(["quantize", str(source), *map(str, given)]) == 1
    assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.yaml", "source"]


@pytest.mark.parametrize("given", [("--inputs", "x.safetensors"), ("--samples", "3")])
def test_what_a_report_measures_with_goes_with_a_report(tmp_path, capsys, given):
    assert main(["quantize", str(tmp_path), "--policy", "p.yaml", "--out", "o", *given]) == 2
    assert "--inputs and --samples go with --report" in capsys.readouterr().err


def test_where_a_mixed_policy_cannot_be_written_is_said_before_measuring(tmp_path, capsys):
    given = ["sensitivity", str(tmp_path), "--policy", "p.yaml", "--out", str(tmp_path / "no" / "mixed.yaml")]
    assert main(given) == 1
    assert "mixed.yaml cannot be written: there is no folder" in capsys.readouterr().err
