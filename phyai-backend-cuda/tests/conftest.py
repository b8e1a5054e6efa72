"""Helpers beside the tests are imported by name; without a GPU, Triton's kernels run under its interpreter."""

import os
import sys
from pathlib import Path

import pytest
import torch
from phyai.catalog import Catalog
from phyai.plugins import discover

sys.path.insert(0, str(Path(__file__).parent))
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return discover()


@pytest.fixture
def correct_rounding(monkeypatch):
    """Triton's interpreter truncates to bf16, and loses the carry of what rounds up to a power of two in FP8."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    narrow = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
    usual = interpreter._convert_float

    def convert(value, source, target, rounding):
        if source.name != "fp32" or target.name not in narrow:
            return usual(value, source, target, rounding)
        rounded = torch.from_numpy(value.view("float32").copy()).to(narrow[target.name])
        return rounded.view(torch.uint8 if rounded.element_size() == 1 else torch.int16).numpy().reshape(value.shape)

    monkeypatch.setattr(interpreter, "_convert_float", convert)


@pytest.fixture
def nothing_in_front(monkeypatch):
    """Triton's interpreter, which runs one launch after the other, has no ``griddepcontrol.wait``: there is nothing to
    wait for. That kernels do wait is seen in what they compile to."""
    if torch.cuda.is_available():
        return
    from phyai_backend_cuda.triton_rows import common

    monkeypatch.setattr(common, "gdc_wait", lambda: None)
