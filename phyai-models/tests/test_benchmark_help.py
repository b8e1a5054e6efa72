"""Every script in ``benchmarks/`` says what it does and takes, also where there is no GPU; the others are imported."""

import ast
import importlib.util
import os
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not BENCHMARKS.is_dir():
    pytest.skip("benchmarks/ comes with the repository, not with the distribution", allow_module_level=True)
FILES = sorted([*BENCHMARKS.glob("*.py"), *BENCHMARKS.glob("spike/*.py")])
SCRIPTS = [path for path in FILES if "__main__" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_answers_help(script, monkeypatch, capsys):
    if script.name.startswith("humming") and importlib.util.find_spec("phyai_backend_humming") is None:
        pytest.skip("it measures phyai-backend-humming, which is not installed")
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(script), run_name="__main__")
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: {script.name}")
    doc = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    assert doc.split()[:5] == told[told.index(doc.split()[0]) :].split()[:5]


@pytest.mark.parametrize("module", [path for path in FILES if path not in SCRIPTS], ids=lambda path: path.stem)
def test_a_file_that_is_no_script_is_imported_by_one(module):
    names = (f"from {module.stem} import", f"import {module.stem}")
    texts = [path.read_text(encoding="utf-8") for path in FILES if path != module]
    assert any(name in text for text in texts for name in names)
