"""Kernels that fail while they are captured."""

import attrs
import pytest
import torch
from phyai.engine import RuntimeConfig
from phyai.errors import CaptureError, KernelFailure, NoKernelError
from phyai_models.layers import Tokens
from phyai_models.pi.hosted import LerobotBatch
from phyai_models.runner.graph import failures_named
from pi_cases import engine, random_batch, random_checkpoint

STATIC = RuntimeConfig("static", prompt_buckets=(4, 8))


def test_a_kernel_that_fails_is_named_and_not_chosen_again(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        first = running.step(batch).actions
        dispatcher = running.dispatcher
        site = next(s for s in dispatcher.sites if s.op.name == "attention_paged")
        broken = site.run

        def fail(*inputs, out=None, state=None):
            raise RuntimeError("operation not permitted when stream is capturing")

        site.run = fail
        program = next(iter(running.model.runner._programs.values()))
        with (
            pytest.raises(
                KernelFailure, match=r"torch\.attention_paged\.sdpa_flash failed at .*not permitted"
            ) as failure,
            torch.no_grad(),
            failures_named(dispatcher),
        ):
            program.compute()
        assert (failure.value.kernel, failure.value.site) == ("torch.attention_paged.sdpa_flash", site.name)
        assert site.run is fail
        site.run = broken
        dispatcher.exclude(failure.value.kernel, str(failure.value))
        assert not dispatcher.frozen
        torch.testing.assert_close(running.step(batch).actions, first, rtol=1e-5, atol=1e-6)
        chosen = {s.decisions[0].kernel.id for s in dispatcher.sites if s.op.name == "attention_paged"}
        assert chosen == {"torch.attention_paged.sdpa_math"}
        rejected = next(r for r in site.decisions[0].rejected if r.kernel == failure.value.kernel)
        assert "not permitted when stream is capturing" in str(rejected)


def test_a_failing_kernel_that_a_rule_pins_leaves_none(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    rules = tmp_path / "pin.yaml"
    rules.write_text(
        "schema: phyai.kernel/v1\nrules:\n"
        "- {id: mine, match: {op: attention_paged}, pin: torch.attention_paged.sdpa_flash}\n"
    )
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    with engine(directory, catalog=catalog, runtime=STATIC, policy=rules) as running:
        running.step(batch)
        running.dispatcher.exclude("torch.attention_paged.sdpa_flash", "failed while captured")
        with pytest.raises(NoKernelError, match="failed while captured"):
            running.step(batch)


def test_what_could_not_be_planned_is_planned_again_though_lengths_are_as_before(tmp_path, catalog, monkeypatch):
    directory = random_checkpoint(tmp_path, "pi05")
    short, longer = (LerobotBatch(random_batch(directory, batch=1, tokens=tokens)) for tokens in (2, 3))
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        running.step(short)
        program = running.model.runner._last
        program.rest = attrs.evolve(program.rest, captured=True)
        planned = []

        def replan(tokens):
            planned.append("prefix" if tokens is program.prefix else "suffix")
            if len(planned) == 2:
                raise CaptureError("no plan")

        monkeypatch.setattr(Tokens, "replan", replan)
        with pytest.raises(CaptureError):
            running.step(longer)
        running.step(short)
        running.step(short)
        assert planned == ["prefix", "suffix"] * 2
