"""All records: the libraries that they ask for, and the functions that they name."""

import pytest
from phyai.environment import Environment
from phyai.kernel import Kernel
from phyai.quant.formats import QuantFormat
from phyai_backend_cuda.records import FORMATS, KERNELS

H200 = Environment.simulated("h200", libraries=()).facts().replace({"lib.triton": "3.6.0", "lib.cupy": "14.2.0"})
#: Packages that are CUDA C++, compiled through CuPy; the others are Triton.
COMPILED = ("attention", "dense", "expert", "gated", "norms", "skinny")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.id)
def test_without_its_library_a_row_says_so(kernel: Kernel) -> None:
    assert isinstance(kernel.prepare, str)
    library = "cupy" if kernel.prepare.split(".")[1] in COMPILED else "triton"
    reason = kernel.when.why_not(H200.replace({f"lib.{library}": None}))
    assert reason is not None
    assert library in reason


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.id)
def test_what_a_row_is_prepared_by_is_there(kernel: Kernel) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    assert callable(kernel.load())


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_what_packs_a_format_is_there(format: QuantFormat) -> None:
    assert callable(format.load_pack())
    assert callable(format.load_unpack())
