"""`phyai explain`: questions as they are typed, and the answers."""

from __future__ import annotations

import pytest
from cli_world import ONE_RULE, Model, alone, kernel
from phyai.cli import Exit
from phyai.plugins import Plugin, PluginStatus


def test_explain_for_a_gpu_that_is_not_here(phyai):
    result = phyai(
        "explain", "--device", "sm90", "--op", "gemm", "-s", "M=50", "-s", "N=4096", "-s", "K=1024", "--json"
    )
    assert result.status == Exit.OK
    data = result.data
    assert data["chosen"] == "fast.gemm"
    assert data["facts"]["shape.M"] == 50
    assert data["facts"]["device.arch"] == "sm90"
    said = "\n".join(data["assumptions"])
    assert "NVIDIA H200 stands for sm90" in said
    assert "lib.quick=2.1" in said


def test_explain_gives_the_reason_for_every_candidate(phyai, policy_file):
    policy = policy_file(ONE_RULE)
    argv = ("explain", "--device", "rtx4090", "--op", "gemm", "-s", "K=100", "--policy", policy, "--json")
    verdicts = {c["kernel"]: c for c in phyai(*argv).data["candidates"]}
    assert verdicts["plain.gemm"]["verdict"] == "accepted"
    assert "sm89" in verdicts["fast.gemm"]["reason"]
    assert "100" in verdicts["fast.gemm"]["reason"]


def test_explain_names_rules_that_ask_which_model_calls_where_the_question_does_not_say(phyai, policy_file):
    policy = policy_file("""
schema: phyai.kernel/v1
rules:
  - {id: pi-products, match: {op: gemm, model.family: pi05}, prefer: plain.gemm}
  - {id: other-op, match: {op: rope, model.family: pi05}, prefer: plain.rope}
  - {id: other-role, match: {op: gemm, model.family: pi05, role: vision}, prefer: plain.gemm}
""")
    argv = ("explain", "--device", "cpu", "--op", "gemm", "--role", "expert", "--policy", policy)
    said = phyai(*argv).err
    assert "the rules pi-products ask for model.family, which the call does not say: -f model.family=" in said
    assert "ask for" not in phyai(*argv, "-f", "model.family=pi05").err


def test_explain_of_a_call_that_no_kernel_runs_is_status_1_with_the_diagnosis(phyai):
    result = phyai("explain", "--device", "cpu", "--op", "rope", "--json")
    assert result.status == Exit.REFUSED
    assert result.data["chosen"] is None
    assert result.data["why"]


def test_explain_reads_values_by_the_kind_of_the_fact(phyai):
    argv = ("-d", "fp16", "-a", "causal=true", "-f", "model.tags=a,b", "-f", "dtype.mask=null", "--role", "expert")
    facts = phyai("explain", "--device", "h200", "--op", "attention", *argv, "--capture", "--json").data["facts"]
    assert facts["dtype.q"] == "fp16"
    assert facts["attrs.causal"] is True
    assert facts["model.tags"] == ["a", "b"]
    assert "dtype.mask" not in facts
    assert facts["role"] == "expert"
    assert facts["mode.capture"] is True


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("-s", "M=fifty"), "shape.M='fifty' is no whole number"),
        (("-s", "M=1.5"), "shape.M='1.5' is no whole number"),
        (("-s", "M=5", "-s", "M=6"), "shape.M is given twice"),
        (("-f", "quant.weight=in4"), "did you mean `int4`?"),
        (("-f", "quant.weight=int4", "-f", "quant.granularity=group"), "group_size"),
        (("-f", "device.arch=sm80"), "use --device"),
        (("-f", "op=rope"), "use --op"),
        (("--device", "sm9O"), "did you mean sm90"),
        (("-s", "M"), "name=value"),
        (("-s", "Q=3"), "shape.Q"),
        (("-f", "mode.capture=perhaps"), "neither true nor false"),
        (("-f", "devic.arch=sm90"), "device.arch"),
        (("--device", "h20O"), "did you mean h200"),
    ],
)
def test_explain_refuses_what_it_cannot_read(phyai, argv, words):
    result = phyai("explain", "--op", "gemm", "--device", "cpu", *argv)
    assert result.status == Exit.REFUSED
    assert words in result.err


def test_explain_notes_a_role_that_no_installed_model_has():
    robot = Plugin(PluginStatus("robot"), models=(Model("arm", "an arm", roles=("expert", "vision")),))
    backend = Plugin(PluginStatus("plain"), kernels=(kernel("plain.gemm"),))
    argv = ("explain", "--op", "gemm", "--device", "cpu", "--json")
    status, said = alone(*argv, "--role", "expret", plugins=(robot, backend))
    assert status == Exit.OK
    assert "no installed model has the role 'expret'; did you mean `expert`?" in said
    assert "installed model" not in alone(*argv, "--role", "expert", plugins=(robot, backend))[1]
    assert "installed model" not in alone(*argv, "--role", "expret", plugins=(backend,))[1]  # any role may be right


def test_explain_answers_for_the_activation_that_pi05s_expert_has(phyai):
    argv = ("explain", "--op", "expert_steps", "--role", "expert", "--device", "cpu", "--json")
    facts = phyai(*argv).data["facts"]
    assert facts["attrs.activation"] == "gelu_tanh"


def test_explain_writes_a_page(phyai, tmp_path):
    page = tmp_path / "decision.html"
    assert phyai("explain", "--op", "gemm", "--device", "cpu", "--html", str(page)).status == Exit.OK
    assert "plain.gemm" in page.read_text(encoding="utf-8")
