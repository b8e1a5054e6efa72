"""`phyai backends`, `ops` and `kernels`: what is there, and what is wrong with it."""

from __future__ import annotations

import pytest
from cli_world import alone
from phyai.cli import Exit
from phyai.plugins import Plugin, PluginState, PluginStatus
from phyai.predicates import match


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
