"""``phyai conformance`` and ``phyai new-backend``: what they print, what they refuse, their exit statuses."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from phyai.cli import main
from phyai.cli.command import Exit
from phyai.errors import PhyAIError
from phyai.scaffold import LICENSES, names, write_backend


def command(*argv: str, catalog=None) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = main(argv, env={}, stdout=out, stderr=err, catalog=catalog)
    return status, out.getvalue(), err.getvalue()


# new-backend


def written(tmp_path, **changes) -> Path:
    given = {"license": "MIT", "author": "Ada Lovelace", "year": 2026, "core": "0.1.0", **changes}
    named = names("my-fast")
    write_backend(tmp_path / named.distribution, named, **given)
    return tmp_path / named.distribution


def test_a_new_backend_has_all_that_a_distribution_needs(tmp_path):
    folder = written(tmp_path)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        ".gitignore", "LICENSE", "README.md", "noxfile.py", "pyproject.toml", "tests/test_conformance.py",
        *(f"src/phyai_backend_my_fast/{n}" for n in ("__init__.py", "int4.py", "plugin.py", "py.typed", "rms_norm.py")),
    }  # fmt: skip
    assert "Copyright (c) 2026 Ada Lovelace" in (folder / "LICENSE").read_text()
    assert 'my_fast = "phyai_backend_my_fast.plugin"' in (folder / "pyproject.toml").read_text()


def test_nothing_is_left_to_fill_in_and_all_python_compiles(tmp_path):
    for path in written(tmp_path).rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert "@NAME@" not in text
            assert not [word for word in ("@PACKAGE@", "@DISTRIBUTION@", "@YEAR@", "@AUTHOR@") if word in text]
            if path.suffix == ".py":
                compile(text, str(path), "exec")


@pytest.mark.parametrize("license", LICENSES)
def test_every_license_is_written_and_named(tmp_path, license):
    folder = written(tmp_path, license=license)
    assert f'license = "{license}"' in (folder / "pyproject.toml").read_text()
    assert len((folder / "LICENSE").read_text()) > 500


@pytest.mark.parametrize(
    "name", ["", "Fast", "9lives", "a.b", "a/b", "../up", "a b", "-a", "a-", "a--b", "_a", "é", "a" * 41, "a\n"]
)
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(PhyAIError, match="is no name for a backend"):
        names(name)


@pytest.mark.parametrize("name", ["torch", "reference", "cuda", "decomposed"])
def test_a_name_that_another_backend_has_is_refused(name):
    with pytest.raises(PhyAIError, match="is there already"):
        names(name)


def test_an_existing_folder_is_left_as_it_is(tmp_path):
    folder = tmp_path / "phyai-backend-my-fast"
    folder.mkdir()
    (folder / "precious.txt").write_text("mine")
    with pytest.raises(PhyAIError, match="exists; nothing is written over"):
        written(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["phyai-backend-my-fast", "precious.txt"]


def test_a_failure_half_way_leaves_nothing_behind(tmp_path, monkeypatch):
    real = Path.write_text

    def full(self, text, *args, **named):
        if self.name == "plugin.py":
            raise OSError(28, "No space left on device", str(self))
        return real(self, text, *args, **named)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        written(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_parent_and_an_unknown_license_are_refused(tmp_path):
    with pytest.raises(PhyAIError, match="is no folder"):
        written(tmp_path / "gone")
    with pytest.raises(PhyAIError, match=r"is none of Apache-2\.0, MIT"):
        written(tmp_path, license="WTFPL")


def test_the_command_lists_what_it_wrote_and_what_to_do_next(tmp_path):
    status, out, _ = command("new-backend", "my-fast", "--into", str(tmp_path))
    assert status == Exit.OK
    assert "plugin.py" in out
    assert "phyai conformance my_fast" in out
    status, _, err = command("new-backend", "my-fast", "--into", str(tmp_path))
    assert status == Exit.REFUSED
    assert "exists" in err


def test_the_command_says_in_json_what_it_wrote(tmp_path):
    _, out, _ = command("new-backend", "sparkle", "--into", str(tmp_path), "--json")
    data = json.loads(out)
    assert (data["name"], data["package"]) == ("sparkle", "phyai_backend_sparkle")
    assert "LICENSE" in data["files"]


# conformance


@pytest.fixture(scope="module")
def catalog():
    for needed in ("torch", "hypothesis", "phyai_backend_reference"):
        pytest.importorskip(needed, reason="the kit needs it")
    import faulty_backend as faulty
    from phyai.catalog import Catalog
    from phyai.plugins import Plugin, PluginStatus, discover

    others = tuple(kernel for kernel in discover(env={}).kernels if kernel.backend == "reference")
    plugins = [
        Plugin(PluginStatus("others"), kernels=others),
        Plugin(PluginStatus("faulty"), kernels=(faulty.rms_norm("wrong scale"), faulty.gemm())),
    ]
    return Catalog.build(plugins)


def test_a_backend_with_a_fault_fails_and_says_how_to_run_it_again(catalog):
    status, out, _ = command("conformance", "faulty", "--device", "cpu", "--seconds", "3", catalog=catalog)
    assert status == Exit.REFUSED
    line = next(line for line in out.splitlines() if "→ phyai conformance faulty --kernel faulty.rms_norm" in line)
    import shlex

    argv = shlex.split(line.partition("→")[2])[1:]
    status, again, _ = command(*argv, "--device", "cpu", catalog=catalog)
    assert status == Exit.REFUSED
    assert "faulty.rms_norm: values: y is off by" in again


def test_a_kernel_without_a_fault_passes_and_skipped_checks_have_reasons(catalog):
    status, out, _ = command(
        "conformance", "faulty", "--kernel", "faulty.gemm", "--device", "cpu", "--seconds", "2", catalog=catalog
    )
    assert status == Exit.OK, out
    assert "skipped, capture: no GPU: faulty.gemm" in out
    assert "1 passed" in out


def test_json_has_every_check_of_every_kernel(catalog):
    status, out, _ = command(
        "conformance", "faulty", "--device", "cpu", "--seconds", "2", "--json", "--check", "values", catalog=catalog
    )
    data = json.loads(out)
    assert (status, data["passed"]) == (Exit.REFUSED, False)
    found = {subject["name"]: subject for subject in data["subjects"]}
    assert found["faulty.gemm"]["outcome"] == "passed"
    (check,) = found["faulty.rms_norm"]["checks"]
    assert check["name"] == "values"
    assert check["call"]["dims"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("nobody",), "no kernel and no quantization format of 'nobody'"),
        (("faulty", "--kernel", "faulty.gem"), "no kernel of 'faulty' matches 'faulty.gem'"),
        (("faulty", "--check", "vlaues"), "no check 'vlaues'"),
        (("faulty", "--call", "{}"), "--call takes one kernel"),
        (("faulty", "--kernel", "faulty.gemm", "--call", "{"), "--call takes JSON"),
        (("faulty", "--kernel", "faulty.gemm", "--call", "{}"), "from {}: it does not say dims and dtypes"),
    ],
)
def test_what_cannot_be_tested_is_refused_with_the_reason(catalog, argv, words):
    status, _, err = command("conformance", *argv, "--device", "cpu", catalog=catalog)
    assert status == (Exit.USAGE if "JSON" in words else Exit.REFUSED)
    assert words in err


def test_only_a_device_of_this_machine_is_tested(catalog):
    status, _, err = command("conformance", "faulty", "--device", "h200", catalog=catalog)
    assert status == Exit.REFUSED
    assert "device 'h200' is none of auto, cpu, cuda, cuda:<index>" in err


def test_a_run_that_exercises_nothing_fails(catalog):
    import attrs
    from phyai.catalog import Catalog
    from phyai.plugins import Plugin, PluginStatus
    from phyai.predicates import match

    kernel = attrs.evolve(catalog.kernel("faulty.gemm"), when=match({"device.type": "cuda"}))
    alone = Catalog.build([Plugin(PluginStatus("faulty"), kernels=(kernel,))])
    status, out, _ = command("conformance", "faulty", "--device", "cpu", "--seconds", "1", catalog=alone)
    assert status == Exit.REFUSED
    assert "failed: nothing was exercised" in out


def test_strict_fails_for_what_this_machine_cannot_run(catalog):
    import attrs
    from phyai.catalog import Catalog
    from phyai.plugins import Plugin, PluginStatus
    from phyai.predicates import match

    gemm = catalog.kernel("faulty.gemm")
    cuda = attrs.evolve(gemm, id="faulty.gemm.cuda", when=match({"device.type": "cuda"}))
    others = tuple(kernel for kernel in catalog.kernels if kernel.backend == "reference")
    both = Catalog.build([
        Plugin(PluginStatus("others"), kernels=others), Plugin(PluginStatus("faulty"), kernels=(gemm, cuda)),
    ])  # fmt: skip
    arguments = ("conformance", "faulty", "--device", "cpu", "--seconds", "1")
    assert command(*arguments, catalog=both)[0] == Exit.OK
    status, out, _ = command(*arguments, "--strict", catalog=both)
    assert status == Exit.REFUSED
    assert "1 could not be run on cpu" in out


@pytest.fixture
def slow(catalog):
    """Two kernels whose ``prepare`` takes its time, as one that compiles does; the list of those that began."""
    import time

    import attrs
    from phyai.catalog import Catalog
    from phyai.plugins import Plugin, PluginStatus

    gemm, began = catalog.kernel("faulty.gemm"), []

    def made(name, seconds, error=None):
        def prepare(*given):
            began.append(name)
            time.sleep(seconds)
            if error is not None:
                raise error
            return gemm.load()(*given)

        return attrs.evolve(gemm, id=f"faulty.gemm.{name}", prepare=prepare)

    others = tuple(kernel for kernel in catalog.kernels if kernel.backend == "reference")

    def build(**kernels):
        own = tuple(made(name, *how) for name, how in kernels.items())
        return Catalog.build(
            [Plugin(PluginStatus("others"), kernels=others), Plugin(PluginStatus("faulty"), kernels=own)]
        )

    return build, began


def test_what_is_left_after_the_time_gets_one_call_per_check(slow):
    build, _ = slow
    catalog = build(first=(0.6,), second=(0.0,))
    checks = ("--check", "values", "--check", "reuse")
    status, out, _ = command(
        "conformance", "faulty", "--device", "cpu", "--seconds", "0.5", *checks, "--json", catalog=catalog
    )
    data = json.loads(out)
    assert (status, data["passed"], data["waiting"]) == (Exit.OK, True, [])
    assert [[check["calls"] for check in subject["checks"]] for subject in data["subjects"]] == [[1, 1], [1, 1]]


def test_a_report_that_is_kept_survives_what_ends_the_run(slow, tmp_path):
    build, _ = slow
    file = tmp_path / "report.json"
    arguments = (
        "conformance",
        "faulty",
        "--device",
        "cpu",
        "--seconds",
        "4",
        "--check",
        "values",
        "--output",
        str(file),
    )
    kernels = {"first": (0.0,), "second": (0.0, KeyboardInterrupt()), "third": (0.0,)}
    status, _, _ = command(*arguments, catalog=build(**kernels))
    assert status == Exit.INTERRUPTED
    data = json.loads(file.read_text())
    assert [subject["name"] for subject in data["subjects"]] == ["faulty.gemm.first"]
    assert data["subjects"][0]["outcome"] == "passed"
    assert (data["passed"], data["waiting"]) == (False, ["faulty.gemm.second", "faulty.gemm.third"])
    del kernels["second"]
    status, out, _ = command(*arguments, "--json", catalog=build(**kernels))
    assert status == Exit.OK
    assert {**json.loads(out), "seconds": 0} == {**json.loads(file.read_text()), "seconds": 0}


def test_a_report_that_cannot_be_kept_is_refused_before_anything_is_tested(slow, tmp_path):
    build, began = slow
    status, _, err = command(
        "conformance", "faulty", "--device", "cpu", "--output", str(tmp_path / "no" / "folder.json"),
        catalog=build(first=(0.0,)),
    )  # fmt: skip
    assert status == Exit.REFUSED
    assert "folder.json cannot be written" in err
    assert not began
