"""A pass as a flat list of calls: it computes what the model computes, and its calls' floors are the stages'."""

import math

import attrs
import pytest
import torch
from phyai.engine import RuntimeConfig
from phyai.kernel import Band
from phyai.policy import parse_policy
from phyai_models.bench import where
from phyai_models.bench.floor import Case, Ceilings, Work, stages
from phyai_models.bench.tape import Call, Tape, record_tape
from phyai_models.bench.timeline import Span
from phyai_models.bench.where import Timed, by_kind, profile_stage, rows_of, spans_of, split
from pi_cases import engine, inputs_of, random_batch, random_checkpoint

STATIC = RuntimeConfig("static", prompt_buckets=())


@pytest.fixture(params=["pi05", "pi0"])
def hosted(request, tmp_path, catalog):
    """An engine, and a program in it that one batch is loaded into."""
    directory = random_checkpoint(tmp_path, request.param, cameras=3)
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        runner = running.model.runner
        inputs = inputs_of(random_batch(directory, batch=1, tokens=7), runner.config)
        program = runner.program(inputs, 3)
        program.load(inputs, replan=False)
        yield (
            running,
            program,
            lambda seed: inputs_of(random_batch(directory, batch=1, tokens=7, seed=seed), runner.config),
        )


@torch.no_grad()
def test_a_tape_computes_what_the_model_does(hosted):
    running, program, batch = hosted
    before = {site: site.run for site in running.dispatcher.sites}
    tape = record_tape(program.compute, running.dispatcher)
    assert {site: site.run for site in running.dispatcher.sites} == before
    for seed in (1, 2):
        program.load(batch(seed), replan=False)
        program.recording.replay()
        want = program.actions.clone()
        program.actions.zero_()
        tape.play()
        assert torch.equal(program.actions, want)


@torch.no_grad()
def test_a_tape_has_the_kernels_themselves_and_no_call_site(hosted):
    running, program, _ = hosted
    tape = record_tape(program.compute, running.dispatcher)
    kernels = [call for call in tape.calls if call.site is not None]
    assert {call.site.op.name for call in kernels} >= {"gemm", "attention", "attention_paged"}
    assert not [call.name for call in tape.calls if call.name.startswith("decomposed.")]
    guards = {site.run for site in running.dispatcher.sites if site.dynamic}
    assert not guards & {call.run for call in kernels}
    for site in running.dispatcher.sites:
        site.run = None  # nothing may call it
    tape.play()


@torch.no_grad()
def test_floors_of_calls_sum_up_to_those_of_the_stages(hosted):
    running, program, _ = hosted
    case = Case(running.model.config, cameras=3, prompt=7, steps=3, dtype="fp32")
    for name, want in stages(case).items():
        got = profiled(running, program, name, case).work
        assert got.flops == {"fp32": pytest.approx(want.operations, rel=1e-9)}, name
        assert got.bytes == pytest.approx(want.bytes, rel=1e-9), name


@torch.no_grad()
def test_an_encoder_in_one_call_counts_what_its_layers_do(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=2)
    rule = "schema: phyai.kernel/v1\nrules: [{match: {op: transformer_encoder}, restrict_to: reference.*}]\n"
    policy = parse_policy(rule, catalog=catalog).policy
    with engine(directory, catalog=catalog, policy=policy, runtime=STATIC) as running:
        runner = running.model.runner
        program = runner.program(inputs_of(random_batch(directory, batch=1, tokens=7), runner.config), 3)
        case = Case(runner.config, cameras=2, prompt=7, steps=3, dtype="fp32")
        program.stages["vision"]()
        found, want = profiled(running, program, "vision", case), stages(case)["vision"]
    assert [call.kernel for call in found.calls].count("reference.transformer_encoder") == 1
    assert found.work.flops == {"fp32": pytest.approx(want.operations, rel=1e-9)}
    assert found.work.bytes == pytest.approx(want.bytes, rel=1e-9)


def profiled(running, program, stage, case):
    work = program.stages[stage]
    return profile_stage(work, work, running.dispatcher, torch.device("cpu"), case)


SIZES = {"width": 32, "expert_width": 16, "head_dim": 8}
FEED_FORWARD = """
schema: phyai.kernel/v1
quantization:
  method: rtn
  rules: [{match: {glob: "*.language_model.*.mlp.*_proj"}, scheme: %s}]
rules: [{match: {op: gemm, quant.scheme: "*"}, restrict_to: "%s"}]
"""
FP8_A8 = "{weight: {dtype: fp8_e4m3, granularity: channel}, input: {dtype: fp8_e4m3, granularity: token}}"
INT8_A8 = "{weight: {dtype: int8, granularity: channel}, input: {dtype: int8, granularity: token}}"
INT4_A8 = "{weight: {dtype: int4, group_size: 16}, input: {dtype: int8, granularity: token}}"
INT4 = "{weight: {dtype: int4, group_size: 16}}"


def fast(catalog):
    """The catalog with a backend whose kernels do what the quantized reference kernels do, above their band."""
    rows = [catalog.kernel(f"reference.gemm.{variant}") for variant in ("weight_only", "integer", "quantized_input")]
    kernels = [attrs.evolve(row, id=f"fast.gemm.{row.variant}", band=Band.OPTIMIZED) for row in rows]
    return attrs.evolve(catalog, kernels=tuple(sorted([*catalog.kernels, *kernels], key=lambda kernel: kernel.id)))


@pytest.mark.parametrize(
    ("scheme", "kernels", "computed", "nbytes"),
    [
        (FP8_A8, "fast.*", "fp8_e4m3", lambda n, k: n * k + 4 * n),
        (INT8_A8, "fast.*", "int8", lambda n, k: n * k + 4 * n),
        (INT4_A8, "fast.*", "int8", lambda n, k: n * k / 2 + 4 * n * math.ceil(k / 16)),
        (INT4, "fast.*", "bf16", lambda n, k: n * k / 2 + 4 * n * math.ceil(k / 16)),
        (FP8_A8, "reference.*", "fp32", lambda n, k: n * k + 4 * n),
    ],
)
@torch.no_grad()
def test_a_quantized_product_counts_in_what_its_kernel_computes(scheme, kernels, computed, nbytes, tmp_path, catalog):
    """The operations stay; the type is that of the quantized inputs, where a kernel multiplies them so; the bytes are
    those of codes and scales."""
    directory, catalog = random_checkpoint(tmp_path, "pi05", cameras=1, **SIZES), fast(catalog)
    policy = parse_policy(FEED_FORWARD % (scheme, kernels), catalog=catalog).policy
    with engine(directory, catalog=catalog, policy=policy, runtime=STATIC, dtype="bf16") as running:
        runner = running.model.runner
        inputs = inputs_of(random_batch(directory, batch=1, tokens=7), runner.config)
        program = runner.program(inputs, 3)
        program.load(inputs, replan=False)
        program.compute()
        program.stages["vision"]()
        case = Case(runner.config, cameras=1, prompt=7, steps=3)
        found = profiled(running, program, "prefix", case)
    config, want = runner.config.language_model, stages(case)["prefix"]
    width, hidden, layers = config.width, config.mlp_dim, config.depth - 1  # of the last one keys and values alone
    calls = [call for call in found.calls if call.kernel.startswith(kernels[:-1]) and call.op == "gemm"]
    assert len(calls) == 2 * layers
    assert {tuple(call.work.flops) for call in calls} == {(computed,)}
    assert sum(call.work.operations for call in calls) == 2 * case.prefix_tokens * 3 * width * hidden * layers
    assert sum(call.work.bytes for call in calls) == (nbytes(2 * hidden, width) + nbytes(width, hidden)) * layers
    assert found.work.operations == want.operations


def test_a_row_without_a_ceiling_says_so_and_the_others_have_their_floor():
    spans = [Span("a", 0, 5)]
    calls = [
        Timed("product", "prefix", "gemm", "fast.gemm.a4", "M=2", spans, Work({"int4": 8.0})),
        Timed("product", "prefix", "gemm", "torch.gemm.bf16", "M=2", spans, Work({"bf16": 8.0})),
        Timed("attention", "prefix", "attention", "torch.attention", "", spans, Work({"bf16": 8.0}, 1e6)),
    ]
    rows = rows_of(calls, Ceilings({"bf16": 4e6}, bandwidth=1e6))
    assert [(row.floor_us, row.ceiling) for row in rows] == [(None, "int4"), (2.0, "bf16"), (1e6, "memory")]
    kinds = by_kind(calls, rows)
    assert [(kind, found["floor_us"]) for kind, found in kinds.items()] == [("product", None), ("attention", 1e6)]


def test_marks_tell_whose_kernel_is_whose():
    names = ["memset", "spin_kernel(long)", "a", "b", "spin_kernel(long)", "spin_kernel(long)", "c"]
    spans = [Span(name, i, 1) for i, name in enumerate(names)]
    assert [[span.name for span in own] for own in split(spans, 3)] == [["a", "b"], [], ["c"]]
    assert split(spans, 4) == [[], [], [], []], "a profiler that lost a mark has lost all"


def test_on_a_cpu_the_quickest_run_counts(monkeypatch):
    """Another process had it during the first pass of both, call by call and as a whole."""
    now, waits, profiled = [0.0], iter([60e-3, 2e-3, 3e-3]), iter([60e3, 3e3, 2e3])

    def run():
        now[0] += next(waits)

    monkeypatch.setattr(where.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(where, "profile", lambda work, device: [Span("addmm", 0, next(profiled))])
    tape = Tape([Call(run, (), {}, None, "addmm")])
    ((call,),), (replayed,), in_place = spans_of(tape, lambda: None, torch.device("cpu"))
    assert (call.length, replayed.length, in_place) == (pytest.approx(2e3), 2e3, False)
