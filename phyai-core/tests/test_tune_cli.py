"""``phyai tune`` and ``phyai map``, on a small catalog."""

from __future__ import annotations

import io
import json
import re
from html.parser import HTMLParser

import pytest
from phyai.cli import main
from phyai.cli.command import Exit
from phyai.errors import CallError
from phyai.kernel import Band
from phyai.tune import Measured, Result
from phyai.tune.decision_map import Axis, parse_grid
from tune_world import catalog, kernel

OPT = Band.OPTIMIZED
TIMES = {"a.activation": 3e-6, "b.activation": 1e-6}


@pytest.fixture
def world():
    return catalog(kernel("a.activation", band=OPT), kernel("b.activation"))


@pytest.fixture
def phyai(world, tmp_path, monkeypatch):
    """Run the command; measuring takes no time, and gives ``TIMES``."""

    class Fake:
        def __init__(self, *_):
            self.times = dict(TIMES)

        def measure(self, task, kernels, policy, *, deadline):
            return Measured({id: Result((self.times[id],) * 9) for id in kernels}, "cpu")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("phyai.tune.Isolated", Fake)

    def run(*argv, status=Exit.OK):
        out, err = io.StringIO(), io.StringIO()
        env = {"PHYAI_KERNEL_TUNE_DIR": str(tmp_path / "store")}
        got = main([*argv], env=env, stdout=out, stderr=err, catalog=world)
        assert got == status, err.getvalue()
        return out.getvalue() + err.getvalue() if "--json" not in argv else json.loads(out.getvalue())

    return run


def test_an_op_is_tuned_stored_and_shown(phyai):
    said = phyai("tune", "--op", "activation", "--device", "cpu")
    assert re.search(r"activation/\S+ +b\.activation +faster +3\.00x +1\.00 µs ±0\.0% +cpu", said)
    assert " 0 known" in said
    again = phyai("tune", "--op", "activation", "--device", "cpu", "--json")
    assert (again["measured"], again["known"]) == (0, len(again["choices"]))
    shown = phyai("tune", "--show", "--device", "cpu")
    assert "b.activation" in shown
    assert "chosen" in shown
    assert re.search(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ, cpu, .*device", shown)
    data = phyai("tune", "--show", "--device", "cpu", "--json")
    assert all(m["counts"] for m in data["measurements"])
    assert data["measurements"][0]["results"]["a.activation"]["samples"] == [3e-6] * 9


def test_repeating_says_how_many_choices_change(phyai):
    said = phyai("tune", "--op", "activation", "--device", "cpu", "--repeat", "3")
    assert re.search(r"3 tunings: 0 of \d+ choices change, 0 of them by more than the noise", said)


def test_choices_that_change_are_listed_with_their_margins(phyai, monkeypatch):
    rounds = iter([1e-6, 1e-6, 9e-6])
    from phyai.tune import tune as real

    def tune(*args, **named):
        args[4].times["b.activation"] = next(rounds)
        return real(*args, **named)

    monkeypatch.setattr("phyai.tune.tune", tune)
    data = phyai("tune", "--op", "activation", "--device", "cpu", "--repeat", "3", "--json")
    assert data["repeat"]["times"] == 3
    changed = data["repeat"]["changed"][0]
    assert changed["choices"] == ["b.activation", "b.activation", "a.activation"]
    assert changed["leads"] == [3.0, 3.0, 3.0]
    assert changed["real"] is True


def test_choices_are_written_into_a_policy_that_decides_alike(phyai, world, tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text("schema: phyai.kernel/v1\n# mine\nrules:\n  - {id: x, match: {role: x}, prefer: [a.activation]}\n")
    said = phyai("tune", "--op", "activation", "--device", "cpu", "--write", str(file))
    assert f"rules written to {file}, in the section 'tuned-cpu-" in said
    assert "# mine" in file.read_text()
    phyai("policy", "check", str(file))  # exits with 0
    spec = next(s for s in world.op("activation").arg_specs if s.facts)
    asked = ["-s", *(f"M={spec.dims['M']}",), "-s", f"D={spec.dims['D']}", "--role", str(spec.facts["role"])]
    named = ["-a", f"activation={spec.attrs['activation']}", "-d", spec.dtypes.get("x", "bf16"), "--device", "cpu"]
    common = ["explain", "--op", "activation", *asked, *named, "--json"]
    assert phyai(*common)["chosen"] == "a.activation"
    assert phyai(*common, "--policy", str(file))["chosen"] == "b.activation"
    tuned = phyai(*common, "--profile", "autotune")
    assert (tuned["chosen"], tuned["decided_by"]) == ("b.activation", "tuning")
    assert "measured 1.00 µs" in tuned["why"]


def test_two_stores_are_compared(phyai, tmp_path):
    for name, b in (("before", 1e-6), ("after", 9e-6)):
        TIMES["b.activation"] = b
        phyai("tune", "--op", "activation", "--device", "cpu", "--store", str(tmp_path / name))
    TIMES["b.activation"] = 1e-6
    found = phyai("tune", "--diff", str(tmp_path / "before"), str(tmp_path / "after"), "--json")
    assert {tuple(one["fastest"]) for one in found} == {("b.activation", "a.activation")}
    assert {one["ratios"]["b.activation"] for one in found} == {9.0}
    assert "the fastest kernel differs at" in phyai("tune", "--diff", str(tmp_path / "before"), str(tmp_path / "after"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--op", "activatoin"), "unknown op 'activatoin'"),
        (("--diff", "none.json", "none2.json"), "none.json: there is no such tuning store"),
    ],
)
def test_what_cannot_be_done_is_said(phyai, argv, words):
    assert words in phyai("tune", "--device", "cpu", *argv, status=Exit.REFUSED)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "give a MODEL with --checkpoint, or --op OP"),
        (
            ("nomodel", "--checkpoint", "x"),
            "unknown model 'nomodel'; models installed: none; install phyai-models (see Install in PhyAI's README) for",
        ),
        (("--op", "activation", "--repeat", "0"), "--repeat 0: at least 1"),
        (("--op", "activation", "--checkpoint", "x"), "go with a MODEL"),
    ],
)
def test_arguments_that_do_not_go_together_are_a_wrong_command_line(phyai, argv, words):
    assert words in phyai("tune", "--device", "cpu", *argv, status=Exit.USAGE)


def test_a_corrupt_store_is_set_aside_and_said(phyai, tmp_path):
    store = tmp_path / "s.json"
    store.write_text("{")
    said = phyai("tune", "--op", "activation", "--device", "cpu", "--store", str(store))
    assert "is corrupt" in said
    assert json.loads(store.read_text())["measurements"]


# Maps


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("M=1..16,layer", (Axis("M", (1, 2, 4, 8, 16)), Axis("layer"))),
        ("M=3..20", (Axis("M", (3, 4, 8, 16, 20)), Axis("layer"))),
        ("M=50|968,N=64..64", (Axis("M", (50, 968)), Axis("N", (64,)))),
    ],
)
def test_grids_are_read(text, axes):
    assert parse_grid(text) == axes


@pytest.mark.parametrize(
    "text", ["", "layer", "M", "M=", "M=0..4", "M=8..4", "M=a|b", "M=1..4,M=1..4", "M=1..2,N=1,K=1"]
)
def test_what_is_no_grid_is_refused(text):
    with pytest.raises(CallError):
        parse_grid(text)


def test_a_map_from_declarations_shows_what_the_resolver_would_choose(phyai, world):
    data = phyai("map", "--op", "activation", "--grid", "M=1..4,layer", "--device", "h200", "--json")
    assert data["M"] == [1, 2, 4]
    assert {cell["kernel"] for row in data["cells"] for cell in row} == {"a.activation"}
    assert {cell["ahead"] for row in data["cells"] for cell in row} == {None}


def test_a_map_from_timings_shows_the_lead_where_it_was_measured(phyai):
    phyai("tune", "--op", "activation", "--device", "cpu")
    data = phyai("map", "--op", "activation", "--grid", "M=1..4096", "--device", "cpu", "--measured", "--json")
    cells = [cell for row in data["cells"] for cell in row]
    assert {(c["kernel"], c["ahead"]) for c in cells} == {("a.activation", None), ("b.activation", 3.0)}


def test_a_map_of_what_was_not_measured_is_refused(phyai):
    said = phyai("map", "--op", "activation", "--measured", "--device", "cpu", status=Exit.REFUSED)
    assert "`phyai tune --op activation` measures it" in said


def test_an_unknown_dimension_is_refused(phyai):
    said = phyai("map", "--op", "activation", "--grid", "Q=1..4", "--device", "cpu", status=Exit.REFUSED)
    assert "activation has no dimension 'Q'; it has: D, M" in said


class Outside(HTMLParser):
    """Whatever a page would fetch or run."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "link", "img", "iframe") or any(name in ("src", "href") for name, _ in attrs):
            self.found.append(tag)


def test_pages_and_pictures_are_written_and_need_nothing_else(phyai, tmp_path):
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "m.html", tmp_path / "m.png"
    phyai(
        "map", "--op", "activation", "--grid", "M=1..4", "--device", "cpu", "--html", str(page), "--png", str(picture)
    )
    outside = Outside()
    outside.feed(page.read_text())
    assert outside.found == []
    assert "url(" not in page.read_text()
    assert "<code>a.activation</code>" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


def test_only_a_picture_needs_matplotlib(phyai, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    phyai("map", "--op", "activation", "--device", "cpu", "--html", str(tmp_path / "m.html"))
    said = phyai("map", "--op", "activation", "--device", "cpu", "--png", str(tmp_path / "m.png"), status=Exit.REFUSED)
    assert "install phyai-core[plots] (see Install in PhyAI's README)" in said


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [("no/policy.yaml", None, "there is no folder"), ("notes.md", "a: policy: not", "not valid YAML")],
)
def test_a_file_that_cannot_take_rules_is_refused_before_anything_is_measured(phyai, tmp_path, file, text, words):
    if text is not None:
        (tmp_path / file).write_text(text)
    said = phyai("tune", "--op", "activation", "--device", "cpu", "--write", str(tmp_path / file), status=Exit.REFUSED)
    assert words in said
    assert not (tmp_path / "store").exists()  # nothing was measured


def test_only_a_device_of_this_machine_is_measured(phyai):
    said = phyai("tune", "--op", "activation", "--device", "h200", status=Exit.REFUSED)
    assert "device 'h200' is none of auto, cpu, cuda, cuda:<index>" in said


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_seconds_that_are_no_span_of_time_are_a_usage_error(phyai, seconds):
    assert "--seconds" in phyai("tune", "--op", "activation", "--seconds", seconds, status=Exit.USAGE)
