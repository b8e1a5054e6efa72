"""A pass as a flat list of calls: it computes what the model computes, and its calls' floors are the stages'."""

import pytest
import torch
from phyai.engine import RuntimeConfig
from phyai_models.bench.floor import Case, stages
from phyai_models.bench.tape import record_tape
from phyai_models.bench.timeline import Span
from phyai_models.bench.where import split, work_of
from phyai_models.pi.inputs import from_lerobot
from pi_cases import engine, random_batch, random_checkpoint

STATIC = RuntimeConfig("static", prompt_buckets=())


@pytest.fixture(params=["pi05", "pi0"])
def hosted(request, tmp_path, catalog):
    """An engine, and a program in it that one batch is loaded into."""
    directory = random_checkpoint(tmp_path, request.param, cameras=3)
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        runner = running.model.runner
        inputs = from_lerobot(random_batch(directory, batch=1, tokens=7), runner.config)
        program = runner.program(inputs, 3)
        program.load(inputs, replan=False)
        yield (
            running,
            program,
            lambda seed: from_lerobot(random_batch(directory, batch=1, tokens=7, seed=seed), runner.config),
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
    config = running.model.config
    case = Case(config, cameras=3, prompt=7, steps=3, itemsize=4)
    for name, want in stages(case).items():
        tape = record_tape(program.stages[name], running.dispatcher)
        heads = {"head"}  # what leads into the expert and out of it, which the stages' floors leave out
        works = [
            work_of(call, case)
            for call in tape.calls
            if call.site is not None and call.site.static.get("role") not in heads
        ]
        assert sum(work.flops for work in works) == pytest.approx(want.flops, rel=1e-9), name
        assert sum(work.bytes for work in works) == pytest.approx(want.bytes, rel=1e-9), name


def test_marks_tell_whose_kernel_is_whose():
    names = ["memset", "spin_kernel(long)", "a", "b", "spin_kernel(long)", "spin_kernel(long)", "c"]
    spans = [Span(name, i, 1) for i, name in enumerate(names)]
    assert [[span.name for span in own] for own in split(spans, 3)] == [["a", "b"], [], ["c"]]
    assert split(spans, 4) == [[], [], [], []], "a profiler that lost a mark has lost all"
