"""The conformance kit finds every planted fault, and lets the same kernel without it pass."""

from __future__ import annotations

import attrs
import pytest
from phyai.predicates import TRUE, match

torch = pytest.importorskip("torch", reason="the kit compares tensors")
pytest.importorskip("phyai_backend_reference", reason="the kit compares with the reference")
pytest.importorskip("hypothesis", reason="the kit draws calls with it")


import faulty_backend as faulty  # noqa: E402
from phyai.kernel import Param  # noqa: E402
from phyai.ops.expert_steps.inputs import behind_prefixes  # noqa: E402
from phyai.testing import Outcome  # noqa: E402
from phyai.testing.case import Case  # noqa: E402
from phyai.testing.checks import CHECKS  # noqa: E402
from phyai.testing.kit import examine  # noqa: E402
from phyai.testing.subject import bind  # noqa: E402

#: A kernel of a few lines is found out quickly; a right one is tried for so long.
SECONDS = 1.5


@pytest.fixture(autouse=True)
def quick_shrinking(monkeypatch):
    monkeypatch.setattr("phyai.testing.kit.SHRINK_SECONDS", 2.0)


def found(record, *names, device="cpu"):
    """The failures of one kernel, by check."""
    subject = faulty.subject(record, device)
    checks = tuple(check for check in CHECKS if check.name in names) if names else CHECKS
    report = examine(subject, seconds=SECONDS, checks=checks)
    return {check.name: check for check in report.checks if check.outcome is Outcome.FAILED}, report, subject


@pytest.mark.parametrize(
    ("make", "fault", "check", "words"),
    [
        (faulty.rms_norm, "wrong scale", "values", "y is off by"),
        (faulty.rms_norm, "unwritten tail", "values", "y is not written everywhere"),
        (faulty.rms_norm, "writes past the end", "values", "writes outside y"),
        (faulty.rms_norm, "mutates its input", "values", "changes its input x"),
        (faulty.rms_norm, "ignores out", "values", "y is not written everywhere"),
        (faulty.rms_norm, "another dtype without out", "values", "without out, y has dtype"),
        (faulty.rms_norm, "believes in contiguous inputs", "values", "the reference says"),
        (faulty.rms_norm, "ignores eps", "arguments", "attrs.eps is ignored"),
        (faulty.rms_norm, "ignores offset", "arguments", "attrs.offset is ignored"),
        (faulty.rms_norm, "random bits", "reproducible", "other bits in y"),
        (faulty.rms_norm, "keeps the first result", "reuse", "after a call with"),
        (faulty.rms_norm, "keeps old weights", "refresh", "after refresh with new weights"),
        (faulty.gemm, "wrong when K is no multiple of 32", "values", "the reference says"),
        (faulty.gemm, "ignores bias", "arguments", "dtype.bias is ignored"),
        (faulty.attention_paged, "keeps the first plan", "plan", "after plan with changed lengths (step 2)"),
        (faulty.expert_steps, "overwrites a key", "values", "changes its input k_cache outside its scratch"),
    ],
)
def test_a_planted_fault_is_found(make, fault, check, words):
    failures, _, _ = found(make(fault), check)
    assert check in failures, f"not found: {fault}"
    assert words in failures[check].reason


@pytest.mark.parametrize("make", [faulty.rms_norm, faulty.gemm, faulty.attention_paged, faulty.gated_activation])
def test_the_same_kernel_without_a_fault_passes(make):
    failures, report, _ = found(make())
    assert failures == {}
    assert report.outcome is Outcome.PASSED
    assert report.calls > 20


def test_a_kernel_may_overwrite_what_its_op_declares_as_scratch():
    failures, report, _ = found(faulty.expert_steps())
    assert failures == {}
    assert {"values", "reuse", "reproducible"} <= {check.name for check in report.checks if check.calls}


def test_the_scratch_of_expert_steps_lies_behind_the_prefixes_of_the_requests_alone():
    inputs = {"lengths": torch.tensor([2, 3], dtype=torch.int32), "k_cache": torch.zeros(1, 3, 4, 2, 8)}
    mask = behind_prefixes(inputs)
    assert mask[..., 0, 0].tolist() == [[False, False, True, True], [False, False, False, True], [False] * 4]
    assert inputs["k_cache"].masked_fill(mask, 1).sum() == 3 * 2 * 8


def test_a_batch_variant_kernel_that_is_declared_invariant_is_found():
    failures, _, _ = found(faulty.gemm("another order for batches", batch_invariant=True), "batch_invariant")
    assert "is declared batch invariant, but y" in failures["batch_invariant"].reason


def test_a_batch_invariant_kernel_passes_and_one_that_does_not_declare_it_is_not_asked():
    failures, report, _ = found(faulty.gemm(batch_invariant=True), "batch_invariant")
    assert failures == {}
    assert report.calls > 0
    _, report, _ = found(faulty.gemm("another order for batches"), "batch_invariant")
    assert report.checks[0].reason == "not declared batch invariant"


def test_a_kernel_that_is_declared_not_reproducible_is_not_asked():
    _, report, _ = found(faulty.rms_norm("random bits", reproducible=False), "reproducible")
    assert report.checks[0].reason == "not declared reproducible"


def test_a_param_that_changes_the_result_is_found():
    alpha = (Param("alpha", "factor", values=(1, 2), default=1),)
    failures, _, _ = found(faulty.gemm("a param changes the result", params=alpha), "values")
    assert failures["values"].call["params"] == {"alpha": 2}


def test_a_failure_shrinks_to_a_small_call_that_reproduces_it():
    failures, _, subject = found(faulty.gemm("wrong when K is no multiple of 32"), "values")
    call = failures["values"].call
    assert call["dims"] == {"M": 1, "N": 1, "K": 16}
    assert "memory" not in call
    case = Case.from_json(subject.op, call)
    with pytest.raises(AssertionError, match="the reference says"):
        CHECKS[0].run(subject, case)
    line = failures["values"].line
    assert line.startswith("phyai conformance faulty --kernel faulty.gemm --check values --call ")


def test_a_capability_that_no_call_fits_is_a_failure_and_no_pass():
    record = faulty.rms_norm()
    record = attrs.evolve(record, when=match({"shape.D": "%16", "all_of": [{"shape.D": "3..9"}]}))
    report = examine(faulty.subject(record), seconds=SECONDS)
    assert report.outcome is Outcome.FAILED
    assert "nothing was exercised" in report.reason


def test_a_kernel_for_another_machine_is_skipped_with_what_is_missing():
    record = attrs.evolve(faulty.rms_norm(), when=match({"device.arch": ">=sm90"}))
    report = examine(faulty.subject(record), seconds=SECONDS)
    assert report.outcome is Outcome.SKIPPED
    assert report.reason == "not on this machine: device.arch is absent (needs >= sm90)"


def test_a_kernel_that_is_entered_for_a_call_that_it_does_not_claim_is_found(monkeypatch):
    assert "refusal" not in found(faulty.gemm(), "refusal")[0]

    def careless(catalog, *args, **named):
        """A dispatcher that refuses this backend nothing."""
        kernels = tuple(attrs.evolve(k, when=TRUE) if k.backend == "faulty" else k for k in catalog.kernels)
        return bind(attrs.evolve(catalog, kernels=kernels), *args, **named)

    monkeypatch.setattr("phyai.testing.subject.bind", careless)
    failures, _, _ = found(faulty.gemm(), "refusal")
    assert "a call that is not claimed runs" in failures["refusal"].reason


def test_an_exception_in_prepare_is_a_failure_with_its_words():
    def prepare(facts, weights, params, resources):
        raise ZeroDivisionError("in the middle")

    failures, _, _ = found(attrs.evolve(faulty.rms_norm(), prepare=prepare), "values")
    assert "ZeroDivisionError: in the middle" in failures["values"].reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ("waits for the device", "capture", "cannot be captured, though capture is safe"),
        ("a stream of its own", "streams", "on a stream of its own"),
    ],
)
def test_a_fault_that_only_a_gpu_shows_is_found(fault, check, words):
    failures, _, _ = found(faulty.gated_activation(fault), check, device="cuda")
    assert words in failures[check].reason


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [faulty.rms_norm, faulty.gemm, faulty.attention_paged, faulty.gated_activation])
def test_a_right_kernel_passes_on_a_gpu(make):
    failures, report, _ = found(make(), device="cuda")
    assert failures == {}
    assert {c.name for c in report.checks if c.calls} >= {"values", "capture", "streams"}
