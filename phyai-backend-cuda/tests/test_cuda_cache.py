"""The cache of compiled sources, with a compiler that only counts."""

import logging
import sys
from types import SimpleNamespace

import pytest
from phyai_backend_cuda.runtime.nvrtc import compile_cubin

#: What NVRTC 12.6 says of ``expert.cu``.
SAID = (
    "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the function 'expert'\n"
)


class Error(Exception):
    """What NVRTC raises."""


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The programs that were compiled; a source that is refused says so by its define ``BAD``."""
    done = []

    def compile_program(program, options):
        if "-DBAD=1" in options:
            raise Error
        done.append(options)

    nvrtc = SimpleNamespace(
        NVRTCError=Error, getVersion=lambda: (12, 8), createProgram=lambda *_: "program", destroyProgram=lambda _: None,
        compileProgram=compile_program, getCUBIN=lambda _: b"\x7fELF" + bytes([len(done)]),
        getProgramLog=lambda _: SAID if any("-DSLOW=1" in options for options in done[-1:]) else "log",
    )  # fmt: skip
    cuda = SimpleNamespace(nvrtc=nvrtc)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda, __file__=str(tmp_path / "cupy" / "x.py")))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setenv("PHYAI_CUDA_CACHE_DIR", str(tmp_path / "cache"))
    return done


def test_a_source_is_compiled_once_for_its_defines_and_kept_whole(compiled, tmp_path):
    first = compile_cubin("expert/expert.cu", {"A": 1}, "sm_90a")
    assert compile_cubin("expert/expert.cu", {"A": 1}, "sm_90a") == first
    assert len(compiled) == 1
    assert compile_cubin("expert/expert.cu", {"A": 2}, "sm_90a") != first
    kept = sorted(path.read_bytes() for path in (tmp_path / "cache").iterdir())
    assert kept == [b"\x7fELF\x01", b"\x7fELF\x02"]


def test_a_source_that_is_refused_leaves_nothing(compiled, tmp_path):
    with pytest.raises(RuntimeError, match=r"could not compile expert/expert\.cu for sm_90a:\nlog"):
        compile_cubin("expert/expert.cu", {"BAD": 1}, "sm_90a")
    assert not (tmp_path / "cache").exists()


def test_a_compiler_that_makes_products_wait_for_each_other_is_named(compiled, caplog):
    with caplog.at_level(logging.WARNING, "phyai"):
        compile_cubin("expert/expert.cu", {"A": 1}, "sm_90a")
        assert not caplog.records
        compile_cubin("expert/expert.cu", {"SLOW": 1}, "sm_90a")
    assert [record.getMessage().partition(" with")[0] for record in caplog.records] == [
        "NVRTC 12.8 compiled expert/expert.cu"
    ]
