"""The command line: exit statuses and messages."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from cli_world import Result
from phyai.cli import Exit
from phyai.cli.registry import BUILT_IN


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
