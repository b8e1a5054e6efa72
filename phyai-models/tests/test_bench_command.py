"""``phyai bench`` at a small size on a CPU."""

import io
import json
import time
from contextlib import suppress

import attrs
import pytest
import torch
from phyai.cli.app import main
from phyai.engine import Engine
from phyai_models.bench.baseline import TimeBoxError, _time_box, worst_cosine
from phyai_models.bench.timeline import Span, kind_of, totals
from phyai_models.bench.timing import Timing
from phyai_models.pi.inputs import TOKEN_MASK
from phyai_models.pi.requests import DeviceBatch, LerobotBatch
from pi_cases import random_checkpoint

torch.set_num_threads(1)


def run(*arguments, catalog):
    out, err = io.StringIO(), io.StringIO()
    status = main(["bench", *map(str, arguments)], env={}, stdout=out, stderr=err, catalog=catalog)
    return status, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_every_stage_is_timed_and_the_plain_implementation_agrees(family, tmp_path, catalog):
    directory = random_checkpoint(tmp_path, family, cameras=3)
    picture = tmp_path / "timeline.png"
    status, out, err = run(
        family, "--checkpoint", directory, "--prompt-tokens", 7, "--batch", 2, "--steps", 3, "--device", "cpu",
        "--dtype", "fp32", "--runs", 3, "--warmup", 1, "--baseline", "torch", "--baseline", "sdpa",
        "--timeline", picture, "--json", catalog=catalog,
    )  # fmt: skip
    assert status == 0, err
    record = json.loads(out)
    assert list(record["stages"]) == ["vision", "prefix", "expert", "total"]
    assert set(record["ceilings"]["tflops"]) == {"fp32"}
    for stage in record["stages"].values():
        assert set(stage["gflop_by_type"]) == {"fp32"}
        assert set(stage["ceilings"]) <= {"fp32", "memory"}
        assert 0 < stage["least"] <= stage["p50"] <= stage["p90"] <= stage["p99"]
        assert stage["share_of_floor"] == pytest.approx(stage["floor"] / stage["p50"])
    assert record["stages"]["total"]["floor"] == pytest.approx(
        sum(record["stages"][name]["floor"] for name in ("vision", "prefix", "expert"))
    )
    assert record["case"] | {"weights": ""} == {
        "cameras": 3, "prompt_tokens": 7, "batch": 2, "steps": 3, "chunk": 6, "dtype": "fp32", "exact": False,
        "weights": "",
    }  # fmt: skip
    assert set(record["end_to_end"]) == {
        "host_to_host", "host_to_host_uint8", "device_to_device", "host_to_host_changing_lengths",
    }  # fmt: skip
    for name in ("torch", "sdpa"):
        baseline = record["baselines"][name]
        assert baseline["samples"] == 8
        assert baseline["worst_cosine_without_noise"] > 0.999999
        assert baseline["times_faster"] == pytest.approx(baseline["p50"] / record["stages"]["total"]["p50"])
    assert record["memory"]["recordings"] >= 1
    assert record["memory"]["allocated"] is record["memory"]["reserved"] is None
    assert record["decisions"]
    for name in ("vision", "prefix", "expert"):
        stage = record["stages"][name]
        rows = [dict(zip(stage["by_site"]["columns"], row, strict=True)) for row in stage["by_site"]["rows"]]
        assert {row["kind"] for row in rows} >= {"product", "attention", "norm"}
        assert all(row["us"] > 0 and row["calls"] > 0 for row in rows)
        product = next(row for row in rows if row["op"] == "gemm")
        assert {"M", "N", "K"} <= {size.partition("=")[0] for size in product["size"].split()}
        assert sum(kind["us"] for kind in stage["by_kind"].values()) == pytest.approx(
            sum(r["us"] for r in rows), rel=1e-3
        )
        assert stage["gap_ms"] == pytest.approx(stage["p50"] - stage["kernel_ms"])
        assert sum(launches for _, launches, _ in stage["by_kernel"]["rows"]) == stage["kernels"]
    assert len(out) < 300_000
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


FP8 = """
schema: phyai.kernel/v1
quantization:
  method: rtn
  rules:
  - match: {glob: "*.language_model.*.self_attn.*_proj"}
    scheme: {weight: {dtype: fp8_e4m3, granularity: channel}, input: {dtype: fp8_e4m3, granularity: token}}
rules: [{match: {op: gemm, quant.scheme: "*"}, restrict_to: "torch.gemm.fp8_*"}]
"""


def test_a_type_that_this_machine_does_not_multiply_has_no_floor_but_a_reason(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=1, width=32, head_dim=8)
    policy, picture = tmp_path / "fp8.yaml", tmp_path / "t.png"
    policy.write_text(FP8)
    arguments = ["pi05", "--checkpoint", directory, "--policy", policy, "--device", "cpu", "--runs", 1, "--warmup", 1,
                 "--steps", 1, "--timeline", picture]  # fmt: skip
    status, out, err = run(*arguments, "--json", catalog=catalog)
    assert status == 0, err
    record = json.loads(out)
    assert "bf16" in record["ceilings"]["tflops"]
    assert "emulates" in record["ceilings"]["not_measured"]["fp8_e4m3"]
    prefix = record["stages"]["prefix"]
    assert set(prefix["ceilings"]) == {"bf16", "fp8_e4m3"}
    assert prefix["floor"] is prefix["share_of_floor"] is prefix["by_kind"]["product"]["floor_us"] is None
    assert record["stages"]["vision"]["floor"] > 0
    assert record["stages"]["total"]["floor"] is None
    status, out, err = run(*arguments, catalog=catalog)
    assert status == 0, err
    assert "fp8_e4m3 not measured: cpu does not multiply fp8_e4m3" in out
    (line,) = (line for line in out.splitlines() if line.startswith("prefix") and "fp8_e4m3" in line)
    assert line.split()[4:8] == ["–", "–", "bf16,", "fp8_e4m3"]


def test_batches_with_fewer_cameras_than_the_model_has(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    status, out, err = run(
        "pi05", "--checkpoint", directory, "--batch", 8, "--cameras", 2, "--device", "cpu", "--dtype", "fp32", "--runs",
        1, "--warmup", 1, "--steps", 1, "--samples", 16, "--baseline", "torch", "--json", catalog=catalog,
    )  # fmt: skip
    assert status == 0, err
    record = json.loads(out)
    assert record["shape"].startswith("batch 8, 2 cameras")
    assert record["baselines"]["torch"]["samples"] == 16
    assert record["baselines"]["torch"]["worst_cosine_without_noise"] > 0.999999


def test_a_table_for_people(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    status, out, err = run(
        "pi05", "--checkpoint", directory, "--prompt-tokens", 3, "--device", "cpu", "--dtype", "fp32", "--runs", 2,
        "--warmup", 1, "--exact", catalog=catalog,
    )  # fmt: skip
    assert status == 0
    first, _, rest = out.partition("where it goes")
    words = [line.split()[0] for line in first.splitlines() if line.strip()]
    assert [word for word in words if word in ("vision", "prefix", "expert", "total")] == [
        "vision",
        "prefix",
        "expert",
        "total",
    ]
    told = {tuple(line.split()[:2]) for line in rest.splitlines()}
    assert told >= {(stage, what) for stage in ("vision", "prefix", "expert") for what in ("product", "attention")}
    assert "where it goes, timed call by call" in out
    assert "gaps" not in out
    (warning,) = (line for line in err.splitlines() if "WARNING" in line)
    assert "only reference kernels are left for" in warning
    assert "ceilings: fp32 " in out
    (memory,) = (line for line in out.splitlines() if line.startswith("memory: "))
    assert [part.split()[0] for part in memory.removeprefix("memory: ").split(", ")] == [
        "parameters", "cache", "buffers", "graphs",
    ]  # fmt: skip


def test_more_than_the_model_takes_is_refused(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=2)
    status, _, err = run(
        "pi05", "--checkpoint", directory, "--device", "cpu", "--dtype", "fp32", "--cameras", 3, catalog=catalog
    )
    assert status == 1
    assert "3 cameras and 12 prompt tokens; this model takes 2 and 12" in err


def test_requests_are_by_default_as_large_as_the_model_takes(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=2)
    status, out, err = run(
        "pi05", "--checkpoint", directory, "--device", "cpu", "--dtype", "fp32", "--runs", 1, "--warmup", 1, "--steps",
        1, "--json", catalog=catalog,
    )  # fmt: skip
    assert status == 0, err
    case = json.loads(out)["case"]
    assert (case["cameras"], case["prompt_tokens"]) == (2, 12)


@pytest.mark.parametrize(
    "arguments",
    [
        ["pi05"],
        ["pi05", "--random-weights", "--runs", "0"],
        ["gpt", "--random-weights"],
        ["pi05", "--random-weights", "--steps", "1000000000"],
        ["pi05", "--random-weights", "--compile-seconds", "-1"],
        ["pi05", "--random-weights", "--compile-seconds", "nan"],
    ],
)
def test_a_wrong_command_line_is_a_usage_error(arguments, catalog):
    assert run(*arguments, catalog=catalog)[0] == 2


@pytest.mark.parametrize("others", [[], ["--baseline", "sdpa"]])
def test_a_time_for_compiling_without_compiling_is_a_usage_error(others, catalog):
    status, _, err = run("pi05", "--checkpoint", "none", "--compile-seconds", 5, *others, catalog=catalog)
    assert status == 2
    assert "--compile-seconds goes with --baseline compile" in err


def test_an_unknown_model_is_said_as_everywhere(catalog):
    status, out, err = run("gpt", "--random-weights", "--json", catalog=catalog)
    assert status == 2
    assert "unknown model 'gpt'; models installed: pi0, pi05" in err
    assert json.loads(out)["error"]["type"] == "UsageError"


def test_a_model_that_is_not_timed_is_a_wrong_command_line(catalog):
    other = attrs.evolve(catalog.model("pi0"), name="other")
    status, _, err = run("other", "--random-weights", catalog=attrs.evolve(catalog, models=(*catalog.models, other)))
    assert status == 2
    assert "this times pi05 and pi0; other is another model" in err


def test_percentiles_by_hand():
    timing = Timing.of([i / 1e3 for i in range(1, 101)])
    assert (timing.p50, timing.p90, timing.p99) == pytest.approx((50.5, 90.1, 99.01))
    assert (timing.least, timing.runs) == (1.0, 100)


def test_the_worst_sample_counts_not_the_mean():
    want = torch.eye(3)[:, None]
    got = want.clone()
    got[1] = torch.tensor([[1.0, 1.0, 0.0]])
    assert worst_cosine(got, want) == pytest.approx(0.5**0.5)


def test_a_time_box_interrupts():
    with pytest.raises(TimeBoxError, match="--compile-seconds"), _time_box(0.05):
        time.sleep(30)
    with _time_box(30):
        pass


def test_a_time_box_closes_on_what_wraps_or_swallows_its_interrupt():
    """As torch.compile does: its compilers' exceptions come out as its own, or as no compiled code."""

    def wraps():
        try:
            time.sleep(30)
        except TimeBoxError as error:
            raise RuntimeError("inductor raised") from error

    with pytest.raises(TimeBoxError, match="stopped after 0 s"), _time_box(0.05):
        wraps()
    with pytest.raises(TimeBoxError, match="stopped after 0 s"), _time_box(0.05), suppress(TimeBoxError):
        time.sleep(30)


def test_a_baseline_that_cannot_be_compiled_costs_no_other_result(tmp_path, catalog, monkeypatch):
    def fails(*given, **how):
        raise RuntimeError("no compiler is here\nmore")

    directory = random_checkpoint(tmp_path, "pi05", cameras=1)
    monkeypatch.setattr(torch, "compile", lambda *given, **how: fails)
    status, out, err = run(
        "pi05", "--checkpoint", directory, "--device", "cpu", "--dtype", "fp32", "--runs", 1, "--warmup", 1, "--steps",
        1, "--baseline", "compile", "--baseline", "torch", "--json", catalog=catalog,
    )  # fmt: skip
    assert status == 0, err
    baselines = json.loads(out)["baselines"]
    assert baselines["compile"] == {"problem": "torch.compile failed: RuntimeError: no compiler is here"}
    assert baselines["torch"]["worst_cosine"] > 0.999999


def test_totals_and_kinds():
    spans = [Span("nvjet_tst_128x64", 0, 10), Span("triton_rms_norm", 10, 2), Span("nvjet_tst_128x64", 12, 10)]
    assert totals(spans) == [("nvjet_tst_128x64", 2, 20), ("triton_rms_norm", 1, 2)]
    assert [kind_of(s.name) for s in spans[:2]] == ["product", "norm"]


def test_a_timeline_that_cannot_be_written_is_refused_before_anything_is_loaded(tmp_path, catalog):
    status, _, err = run("pi05", "--checkpoint", "none", "--timeline", tmp_path / "no" / "t.png", catalog=catalog)
    assert status == 1
    assert "t.png cannot be written: there is no folder" in err


@pytest.mark.parametrize("name", ["t", "t.xyz", "folder.png"])
def test_a_timeline_is_a_png_file_and_nothing_else(name, tmp_path, catalog):
    """Under another name the library that draws it writes another format, or elsewhere."""
    (tmp_path / "folder.png").mkdir()
    status, _, err = run("pi05", "--checkpoint", "none", "--timeline", tmp_path / name, catalog=catalog)
    assert status == 1
    assert f"{name} cannot be written: give a file whose name ends in .png" in err


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_from_host_to_host_goes_through_the_engine_as_callers_do(family, tmp_path, catalog, monkeypatch):
    directory = random_checkpoint(tmp_path, family, cameras=3)
    asked, step = [], Engine.step

    def noted(self, request):
        result = step(self, request)
        asked.append((request, getattr(result, "actions", result).clone()))  # the next request overwrites it
        return result

    monkeypatch.setattr(Engine, "step", noted)
    status, _, err = run(
        family, "--checkpoint", directory, "--cameras", 2, "--prompt-tokens", 7, "--batch", 2, "--steps", 1, "--device",
        "cpu", "--dtype", "fp32", "--runs", 3, "--warmup", 1, "--json", catalog=catalog,
    )  # fmt: skip
    assert status == 0, err
    batches = [(request.tensors, actions) for request, actions in asked if isinstance(request, LerobotBatch)]
    assert len(batches) == 3 * (3 + 1), "of floats, of bytes, then two lengths in turns"
    lengths = [int(tensors[TOKEN_MASK].sum()) for tensors, _ in batches]
    assert lengths == [14] * 8 + [14, 12] * 2
    images, of_bytes = ([value for name, value in batches[at][0].items() if "images" in name] for at in (0, 4))
    assert len(images) == 2
    assert all(image.min() >= 0 and image.max() <= 1 for image in images)
    for floats, bytes_ in zip(images, of_bytes, strict=True):
        assert bytes_.dtype == torch.uint8
        torch.testing.assert_close(bytes_ / 255, floats, rtol=0, atol=0.5 / 255 + 1e-6)
    on_device = next(actions for request, actions in asked if isinstance(request, DeviceBatch))
    torch.testing.assert_close(batches[0][1], on_device[..., : batches[0][1].shape[-1]], rtol=1e-5, atol=1e-5)


def test_a_seed_that_torch_does_not_take_is_refused(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=1)
    status, _, err = run("pi05", "--checkpoint", directory, "--seed", 2**64, catalog=catalog)
    assert status == 1
    assert f"seed={2**64}; give a whole number" in err
