"""The command line: output, exit statuses, messages, and what it may import."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
from phyai.catalog import Catalog
from phyai.cli import Context, Exit, main
from phyai.cli.registry import BUILT_IN
from phyai.environment import Library
from phyai.kernel import Band, Capture, Kernel, Numerics
from phyai.plugins import Command, Plugin, PluginState, PluginStatus
from phyai.predicates import match


@attrs.frozen
class Model:
    name: str
    doc: str
    command: str | None = None
    roles: tuple[str, ...] = ()


def kernel(id: str, when: dict | None = None, **more) -> Kernel:
    return Kernel(
        id=id, op=id.split(".")[1], when=match(when or {}), prepare=print, capture=Capture.SAFE,
        numerics=Numerics(reproducible=True), **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    fast = kernel(
        "fast.gemm",
        {"device.arch": ">=sm90", "shape.K": "%128", "lib.quick": ">=2"},
        doc="very fast",
        band=Band.OPTIMIZED,
    )
    plain = kernel("plain.gemm", bands={Band.SPECIALIZED: match({"shape.K": 64})})
    broken = PluginStatus(
        "sad", distribution="phyai-backend-sad", version="0.3", state=PluginState.IMPORT_ERROR,
        reason="ImportError: no driver", advice="install one",
    )  # fmt: skip
    return Catalog.build(
        [
            Plugin(
                PluginStatus("fast", distribution="phyai-backend-fast", version="1.0"),
                kernels=(fast,),
                libraries=(Library("quick", ("quick-lib-that-is-not-here",), "2.1"),),
                commands=(Command("weigh", "weigh a kernel", "json.tool"),),
                models=(Model("toy", "a toy", "toy_model_command"), Model("mute", "has no command")),
            ),
            Plugin(PluginStatus("plain", distribution="phyai-backend-plain", version="1.0"), kernels=(plain,)),
            Plugin(broken),
        ]
    )


@attrs.frozen
class Result:
    status: int
    out: str
    err: str

    @property
    def data(self):
        return json.loads(self.out)


@pytest.fixture
def phyai(catalog):
    def run(*argv: str, env: dict[str, str] | None = None) -> Result:
        out, err = io.StringIO(), io.StringIO()
        status = main(argv, env=env or {}, stdout=out, stderr=err, catalog=catalog)
        return Result(status, out.getvalue(), err.getvalue())

    return run


ONE_RULE = "schema: phyai.kernel/v1\nrules:\n  - id: quick\n    match: {op: gemm}\n    prefer: fast.gemm\n"
TYPO = "schema: phyai.kernel/v1\nrules:\n  - id: quick\n    match: {op: gemm}\n    preferr: fast.gemm\n"


@pytest.fixture
def policy_file(tmp_path):
    def write(text: str, name: str = "policy.yaml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


# exit statuses and messages


def test_no_command_shows_help_on_stderr_and_is_a_usage_error(phyai):
    result = phyai()
    assert result.status == Exit.USAGE
    assert result.out == ""
    assert all(command.name in result.err for command in BUILT_IN)


def test_help_lists_built_in_and_contributed_commands(phyai):
    result = phyai("--help")
    assert result.status == Exit.OK
    assert all(f"  {command.name}" in result.out for command in BUILT_IN)
    assert "weigh a kernel" in result.out


@pytest.mark.parametrize("name", [command.name for command in BUILT_IN])
def test_help_of_every_command_has_examples_and_exit_statuses(phyai, name):
    result = phyai(name, "--help")
    assert result.status == Exit.OK
    assert f"phyai {name}" in result.out.split("examples:")[1]
    assert "exit status:" in result.out
    assert "--json" in result.out


def test_version(phyai):
    import phyai as package

    assert phyai("--version").out == f"phyai {package.__version__}\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("explan",), "did you mean `phyai explain`?"),
        (("zzz",), "phyai --help"),
        (("--colour",), "--colour"),
        (("explain",), "--op"),
        (("ops", "--nope"), "--nope"),
        (("policy",), "ACTION"),
        (("tune",), "give a MODEL with --checkpoint"),
        (("tune", "arm", "--op", "gemm"), "not both"),
        (("kernels", "--js"), "--js"),  # no abbreviations: a later option must not change what one means
    ],
)
def test_a_wrong_command_line_is_status_2(phyai, argv, words):
    result = phyai(*argv)
    assert result.status == Exit.USAGE
    assert words in result.err
    assert result.out == ""


def test_a_refusal_is_one_message_on_stderr_and_status_1(phyai):
    result = phyai("ops", "layer_nrom")
    assert (result.status, result.out) == (Exit.REFUSED, "")
    assert result.err == "phyai: unknown op 'layer_nrom'; did you mean `layer_norm`?\n"


@pytest.mark.parametrize("how", [{"env": {"PHYAI_DEBUG": "1"}}, {"flag": True}])
def test_debug_adds_the_traceback(phyai, how):
    argv = ("ops", "nothing", "--debug") if "flag" in how else ("ops", "nothing")
    result = phyai(*argv, env=how.get("env"))
    assert result.status == Exit.REFUSED
    assert "Traceback" in result.err
    assert "DeclarationError" in result.err


def test_debug_variable_is_read_strictly(phyai):
    assert "Traceback" not in phyai("ops", "nothing", env={"PHYAI_DEBUG": "false"}).err
    result = phyai("ops", env={"PHYAI_DEBUG": "maybe"})
    assert result.status == Exit.REFUSED
    assert "PHYAI_DEBUG='maybe'" in result.err


def test_with_json_a_refusal_is_json_too(phyai):
    result = phyai("ops", "nothing", "--json")
    assert result.status == Exit.REFUSED
    assert result.data["error"]["type"] == "DeclarationError"
    assert "unknown op" in result.data["error"]["message"]


def test_with_json_an_unknown_model_is_refused_in_json_wherever_the_option_stands(phyai):
    for argv in (("run", "toi", "--json"), ("run", "--json", "toi")):
        result = phyai(*argv)
        assert result.status == Exit.USAGE
        assert "unknown model 'toi'" in json.dumps(result.data)


def test_an_unknown_model_is_a_wrong_command_line(phyai):
    for argv in (("run", "toi"), ("tune", "toi", "--checkpoint", "x")):
        result = phyai(*argv)
        assert result.status == Exit.USAGE
        assert "unknown model 'toi'; models installed: mute, toy" in result.err


def run_raising(monkeypatch, phyai, error: BaseException) -> Result:
    def raising(*_):
        raise error

    monkeypatch.setattr("phyai.cli.ops.main", raising)
    return phyai("ops")


SLOW = """
import sys, time
from pathlib import Path
import phyai.cli.ops
from phyai.cli import main
from phyai.files.replacing import replacing

def slow(args, context):
    with replacing(Path(sys.argv[1])):
        print("ready", flush=True)
        time.sleep(60)

phyai.cli.ops.main = slow
sys.exit(main(["ops"]))
"""


def test_sigterm_unwinds_and_leaves_nothing_half_written(tmp_path):
    command = [sys.executable, "-c", SLOW, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.terminate()
        _, err = process.communicate(timeout=30)
    assert process.returncode == Exit.STOPPED
    assert err == "phyai: stopped by SIGTERM\n"
    assert list(tmp_path.iterdir()) == []


def test_who_handles_sigterm_keeps_doing_so(phyai):
    def mine(*_):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        assert phyai("ops").status == Exit.OK
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
    assert phyai("ops").status == Exit.OK
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_runs_in_any_thread(phyai):
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(phyai, "ops").result().status == Exit.OK


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be"), "CUDA error: out of memory"),
        (MemoryError(), "MemoryError"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
    ],
)
def test_memory_that_ran_out_is_no_defect(monkeypatch, phyai, error, said):
    result = run_raising(monkeypatch, phyai, error)
    assert (result.status, result.err) == (Exit.REFUSED, f"phyai: memory ran out: {said}\n")


def test_an_unforeseen_error_is_status_3_without_a_traceback(monkeypatch, phyai):
    result = run_raising(monkeypatch, phyai, ZeroDivisionError("oops"))
    assert result.status == Exit.INTERNAL
    assert "internal error: ZeroDivisionError: oops" in result.err
    assert "PHYAI_DEBUG=1" in result.err
    assert "Traceback" not in result.err


def test_a_file_that_cannot_be_written_is_a_refusal_that_names_it(phyai, tmp_path):
    target = str(tmp_path / "no" / "such" / "page.html")
    result = phyai("explain", "--op", "gemm", "--device", "cpu", "--html", target)
    assert result.status == Exit.REFUSED
    assert target in result.err


def test_a_missing_module_says_what_to_install(monkeypatch, phyai):
    result = run_raising(monkeypatch, phyai, ModuleNotFoundError("No module named 'ray'", name="ray"))
    assert result.status == Exit.REFUSED
    assert "pip install ray" in result.err


def test_ctrl_c_is_status_130(monkeypatch, phyai):
    result = run_raising(monkeypatch, phyai, KeyboardInterrupt())
    assert (result.status, result.err) == (130, "phyai: interrupted\n")


# backends, ops, kernels


def test_backends_says_what_is_wrong_and_what_to_do(phyai):
    out = phyai("backends").out
    row = next(line for line in out.splitlines() if line.startswith("sad"))
    assert "phyai-backend-sad 0.3" in row
    assert "import error" in row
    assert "sad: ImportError: no driver\n    → install one\n" in out


def test_backends_status_is_1_only_when_asked_to_check(phyai):
    assert phyai("backends").status == Exit.OK
    assert phyai("backends", "--check").status == Exit.REFUSED


def test_backends_count_what_each_provides(phyai):
    rows = {row["name"]: row for row in phyai("backends", "--json").data["plugins"]}
    assert rows["fast"]["provides"] == {"kernels": 1, "models": 2, "libraries": 1, "commands": 1}
    assert rows["fast"]["usable"]
    assert (rows["sad"]["provides"], rows["sad"]["usable"], rows["sad"]["state"]) == ({}, False, "import error")
    assert "1 kernel, 2 models, 1 library, 1 command" in phyai("backends").out


def alone(*argv, plugins=()):
    """What the core says where nothing else is installed."""
    out, err = io.StringIO(), io.StringIO()
    status = main(list(argv), env={}, stdout=out, stderr=err, catalog=Catalog.build(plugins))
    return status, out.getvalue() + err.getvalue()


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("explain", "--op", "gemm", "--device", "h200"), Exit.REFUSED),
        (("explain", "--op", "gated_mlp", "--device", "h200"), Exit.REFUSED),
        (("map", "--op", "gemm", "--device", "h200"), Exit.REFUSED),
        (("kernels",), Exit.OK),
        (("backends",), Exit.OK),
    ],
)
def test_without_any_backend_it_says_so_and_what_to_install(argv, status):
    got, said = alone(*argv)
    assert got == status
    assert "no backend is installed: install phyai-backend-reference (see Install in PhyAI's README)" in said
    assert "no kernel may run" not in said


def test_where_no_backend_can_be_used_it_says_which_are_there():
    sad = Plugin(PluginStatus("sad", state=PluginState.DISABLED, reason="named in PHYAI_DISABLE_PLUGINS"))
    status, said = alone("explain", "--op", "gemm", plugins=(sad,))
    assert status == Exit.REFUSED
    assert "no backend that is installed can be used: sad (disabled); `phyai backends` says why" in said


def test_ops_lists_every_op_with_its_kernels(phyai, catalog):
    rows = {row["name"]: row for row in phyai("ops", "--json").data}
    assert set(rows) == {op.name for op in catalog.ops}
    assert rows["gemm"]["kernels"] == ["fast.gemm", "plain.gemm"]
    assert phyai("ops").out.count("\n") == len(catalog.ops) + 1


def test_one_op_by_alias(phyai):
    assert phyai("ops", "layernorm", "--json").data["name"] == "layer_norm"
    out = phyai("ops", "layernorm").out
    assert "shape.D" in out
    assert "eps" in out


def test_an_op_says_what_of_its_inputs_it_writes(phyai):
    assert "residual (mutated)" in phyai("ops", "rms_norm_add").out
    assert "k_cache (in part scratch)" in phyai("ops", "expert_steps").out


def test_kernels_by_op_glob_and_id(phyai):
    assert [k["id"] for k in phyai("kernels", "--op", "linear", "--json").data] == ["fast.gemm", "plain.gemm"]
    assert [k["id"] for k in phyai("kernels", "plain.*", "--json").data] == ["plain.gemm"]
    one = phyai("kernels", "fast.linear", "--json").data
    assert (one["id"], one["distribution"]) == ("fast.gemm", "phyai-backend-fast")
    assert match(one["when"]) == match({"device.arch": ">=sm90", "shape.K": "%128", "lib.quick": ">=2"})
    assert "very fast" in phyai("kernels", "fast.gemm").out


def test_a_kernel_shows_where_it_is_in_a_higher_band(phyai):
    assert phyai("kernels", "plain.gemm", "--json").data["bands"] == {"specialized": {"shape.K": 64}}
    assert "general/specialized" in phyai("kernels", "--op", "gemm").out
    one = phyai("explain", "--device", "cpu", "--op", "gemm", "-s", "K=64", "--json").data
    assert one["why"] == "band specialized where shape.K is 64, rank 0 in plain"
    assert "band general (not specialized: shape.K=65 is not 64)" in phyai(
        "explain", "--device", "cpu", "--op", "gemm", "-s", "K=65"
    ).out  # fmt: skip


def test_a_glob_of_nothing_says_so(phyai):
    assert phyai("kernels", "nobody.*").out.endswith("no kernel\n")


# explain


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


# policy


def test_policy_check_of_a_good_file(phyai, policy_file):
    path = policy_file(ONE_RULE)
    result = phyai("policy", "check", path)
    assert (result.status, result.out) == (Exit.OK, f"{path}: ok\n")


def test_policy_check_reports_line_column_and_suggestion_of_every_file(phyai, policy_file):
    good, bad = policy_file(ONE_RULE, "good.yaml"), policy_file(TYPO, "bad.yaml")
    result = phyai("policy", "check", good, bad)
    assert result.status == Exit.REFUSED
    assert f"{bad}:5:5:" in result.out
    assert "did you mean `prefer`?" in result.out
    assert f"{good}: ok" in result.out
    data = phyai("policy", "check", good, bad, "--json").data
    assert [entry["ok"] for entry in data] == [True, False]
    assert (data[1]["errors"][0]["line"], data[1]["errors"][0]["got"]) == (5, "preferr")


def test_policy_check_strict_fails_on_warnings(phyai, policy_file):
    path = policy_file(ONE_RULE.replace("fast.gemm", "nobody.gemm"))
    assert phyai("policy", "check", path).status == Exit.OK
    result = phyai("policy", "check", path, "--strict")
    assert result.status == Exit.REFUSED
    assert "[warning]" in result.out


def test_policy_check_shows_the_warnings_of_a_file_that_has_errors_too(phyai, policy_file):
    path = policy_file("rules:\n- {match: {op: gemm}, prefer: [torch.gemm.nonsense]}\n- {match: {op: gemn}}\n")
    result = phyai("policy", "check", path)
    assert result.status == Exit.REFUSED
    assert "gemn" in result.out
    assert "no schema; read as phyai.kernel/v1 (add `schema: phyai.kernel/v1`) [warning]" in result.out
    (row,) = phyai("policy", "check", path, "--json").data
    assert not row["ok"]
    assert {problem["line"] for problem in row["errors"]} == {3}
    assert [problem["line"] for problem in row["warnings"]] == [1, 2]


def test_policy_check_of_a_file_that_is_not_there(phyai, tmp_path):
    result = phyai("policy", "check", str(tmp_path / "none.yaml"))
    assert result.status == Exit.REFUSED
    assert "none.yaml" in result.out


@pytest.mark.parametrize("argv", [("policy", "--json", "show"), ("policy", "show", "--json")])
def test_json_may_stand_before_or_after_the_action(phyai, argv):
    assert phyai(*argv).data["profile"] == "static"


def test_policy_show_takes_file_and_profile_from_the_environment(phyai, policy_file):
    env = {"PHYAI_KERNEL_CONFIG": policy_file(ONE_RULE), "PHYAI_KERNEL_PROFILE": "autotune"}
    data = phyai("policy", "show", "--json", env=env).data
    assert data["source"] == env["PHYAI_KERNEL_CONFIG"]
    assert data["profile"] == "autotune"
    (rule,) = [rule for rule in data["rules"] if rule["layer"] == "user"]
    assert (rule["id"], rule["prefer"], rule["line"]) == ("quick", ["fast.gemm"], 3)
    assert "quick" in phyai("policy", "show", env=env).out


def test_an_argument_beats_the_variable(phyai, policy_file):
    path = policy_file(ONE_RULE)
    data = phyai("policy", "show", path, "--json", env={"PHYAI_KERNEL_CONFIG": "/nowhere.yaml"}).data
    assert data["source"] == path


# run, and commands of plug-ins


@pytest.fixture
def toy_command(tmp_path, monkeypatch):
    (tmp_path / "toy_model_command.py").write_text(
        '"""Play."""\n'
        "EXAMPLES = '  phyai run toy --speed 3'\n"
        "def add_arguments(parser):\n    parser.add_argument('--speed', type=int, default=1)\n"
        "def main(args, context):\n    context.emit({'speed': args.speed, 'json': context.json})\n    return 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("toy_model_command", None)


def test_run_lists_models(phyai):
    assert [model["name"] for model in phyai("run", "--json").data] == ["mute", "toy"]


@pytest.mark.usefixtures("toy_command")
def test_run_hands_over_to_the_models_own_command(phyai):
    result = phyai("run", "toy", "--speed", "3")
    assert (result.status, result.data) == (7, {"speed": 3, "json": False})
    assert phyai("run", "toy", "--json").data == {"speed": 1, "json": True}
    assert phyai("run", "--json", "toy").data == {"speed": 1, "json": True}
    help_text = phyai("run", "toy", "--help").out
    assert "phyai run toy --speed 3" in help_text
    assert "Play." in help_text
    assert phyai("run", "toy", "--sped", "3").status == Exit.USAGE


def test_run_of_a_model_that_cannot_run(phyai):
    result = phyai("run", "mute")
    assert result.status == Exit.REFUSED
    assert "no command of its own" in result.err


# how it writes


def test_output_that_is_not_for_a_terminal_is_plain_and_unwrapped(phyai):
    for argv in (("backends",), ("kernels",), ("explain", "--op", "gemm", "--device", "sm90")):
        out = phyai(*argv).out
        assert "\x1b" not in out
        assert not set(out) & set("─━│┃╭╮")
        assert all(line == line.rstrip() for line in out.splitlines())
    assert phyai("explain", "--op", "gemm", "--device", "sm90").out.count("shape.M") == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(catalog, *argv: str, **env: str) -> str:
    out = Terminal()
    main(argv, env={"TERM": "xterm-256color", **env}, stdout=out, stderr=io.StringIO(), catalog=catalog)
    return out.getvalue()


def test_a_terminal_gets_colour_unless_no_color_is_set(catalog):
    argv = ("explain", "--op", "gemm", "--device", "cpu")
    assert "\x1b[" in on_terminal(catalog, *argv, COLUMNS="100")
    without = on_terminal(catalog, *argv, COLUMNS="100", NO_COLOR="1")
    assert "\x1b[3" not in without  # bold may stay, colours may not


@pytest.mark.parametrize("columns", [60, 120])
def test_tables_fit_the_width_of_the_terminal(catalog, columns):
    from rich.text import Text

    out = on_terminal(catalog, "backends", COLUMNS=str(columns))
    lines = [Text.from_ansi(line).cell_len for line in out.splitlines()]
    assert max(lines) <= columns


def test_a_long_first_column_leaves_the_others_on_the_terminal():
    from phyai.cli.output import make_console, make_table

    shown = Terminal()
    table = make_table(("layer", "scheme"), [("model.layers." * 12, "w4a16")])
    make_console(shown, {"TERM": "xterm", "COLUMNS": "80"}).print(table)
    assert "w4a16" in shown.getvalue()


def test_progress_draws_on_a_terminal_only(catalog):
    shown, hidden = Terminal(), io.StringIO()
    for stream in (shown, hidden):
        with Context(stderr=stream, env={"TERM": "xterm", "COLUMNS": "80"}).progress("tuning") as update:
            update(1, 2)
    assert "tuning" in shown.getvalue()
    assert hidden.getvalue() == ""


# in processes of their own


def python(code: str, *, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["explain", "--device", "sm90", "--op", "gemm", "-s", "M=50"],
        ["policy", "check", "FILE"],
        ["policy", "show"],
        ["backends"],
        ["ops"],
        ["kernels"],
        ["run"],
    ],
)
def test_questions_never_import_torch(argv, policy_file):
    argv = [policy_file("schema: phyai.kernel/v1\n") if arg == "FILE" else arg for arg in argv]
    heavy = "[m for m in ('torch', 'numpy', 'triton', 'cupy') if m in sys.modules]"
    result = python(f"import sys; from phyai.cli import main; main({argv!r}); print({heavy}, file=sys.stderr)")
    assert result.stderr.splitlines()[-1] == "[]", result.stderr


def test_importing_phyai_takes_under_a_fifth_of_a_second():
    code = "import time; t = time.perf_counter(); import phyai; print(time.perf_counter() - t)"
    seconds = min(float(python(code).stdout) for _ in range(5))
    assert seconds < 0.2


def test_python_m_phyai_is_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "phyai", "ops", "nothing"], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == Exit.REFUSED
    assert "phyai: unknown op 'nothing'" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    with subprocess.Popen(
        [sys.executable, "-m", "phyai", "ops", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        errors = process.stderr.read().decode()
        status = process.wait(timeout=120)
    assert status == Exit.BROKEN_PIPE
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors


def test_an_encoding_that_lacks_a_character_is_no_failure():
    code = "from phyai.cli import main; raise SystemExit(main(['ops', 'modulation']))"
    result = python(code, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert result.returncode == Exit.OK, result.stderr


def test_disabled_plugins_are_said_in_the_real_command():
    result = python(
        "from phyai.cli import main; main(['backends', '--json'])", env={"PHYAI_DISABLE_PLUGINS": "no-such-plugin"}
    )
    rows = {row["name"]: row for row in json.loads(result.stdout)["plugins"]}
    assert rows["no-such-plugin"]["state"] == "unknown"


def test_every_built_in_command_is_one_file_with_what_a_command_must_have():
    import importlib

    folder = Path(__file__).parents[1] / "src" / "phyai" / "cli"
    for command in BUILT_IN:
        module = importlib.import_module(command.module)
        assert callable(module.add_arguments)
        assert callable(module.main)
        assert Path(module.__file__).parent == folder
