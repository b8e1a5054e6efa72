"""Environments: this machine's, and ones that are not here."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
from phyai.environment import CORE_LIBRARIES, Device, DeviceError, Environment, Library

PACKAGING = Library("packaging", ("packaging",), "1.0")
ABSENT = Library("absent", ("certainly-not-installed",), "3.2")


def test_cpu_yields_no_gpu_facts():
    facts = Environment.detect("cpu", libraries=()).facts()
    assert facts["device.type"] == "cpu"
    assert not [name for name in facts if name in ("device.arch", "device.vendor", "device.sm_count")]


def test_library_versions_are_those_of_the_metadata_and_absent_ones_yield_no_fact():
    facts = Environment.detect("cpu", libraries=(PACKAGING, ABSENT)).facts()
    assert facts["lib.packaging"] == metadata.version("packaging")
    assert "lib.absent" not in facts


def test_a_library_is_found_under_any_of_its_distribution_names():
    assert Library("p", ("certainly-not-installed", "packaging"), "1").installed() == metadata.version("packaging")


def test_metadata_without_a_version_counts_as_not_installed(tmp_path, monkeypatch):
    (tmp_path / "hollow_lib-1.0.dist-info").mkdir()
    (tmp_path / "hollow_lib-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: hollow-lib\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Library("hollow", ("hollow-lib",), "1").installed() is None


def test_simulated_device_has_every_fact_and_says_what_it_assumed():
    environment = Environment.simulated("sm90", libraries=(PACKAGING, ABSENT))
    assert dict(environment.facts()) == {
        "device.type": "cuda",
        "device.vendor": "nvidia",
        "device.arch": "sm90",
        "device.name": "NVIDIA H200",
        "device.sm_count": 132,
        "device.memory_gb": 141,
        "lib.packaging": metadata.version("packaging"),
        "lib.absent": "3.2",
    }
    said = "\n".join(environment.assumptions)
    assert "NVIDIA H200 stands for sm90" in said
    assert "lib.absent=3.2" in said
    assert "packaging" not in said


def test_a_device_by_name_assumes_nothing_about_the_device():
    assert Environment.simulated("h200", libraries=()).assumptions == ()


def test_simulated_with_given_versions_takes_exactly_those():
    environment = Environment.simulated("cpu", libraries={"torch": "2.6"})
    assert environment.libraries == {"torch": "2.6"}
    assert environment.assumptions == ()


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", ""])
def test_a_device_name_of_another_form_is_refused(name):
    with pytest.raises(DeviceError, match="none of auto, cpu, cuda"):
        Environment.detect(name, libraries=())


def test_a_cuda_device_beyond_the_last_is_refused():
    with pytest.raises(DeviceError, match="not there"):
        Environment.detect("cuda:4096", libraries=())


def test_environments_are_values():
    assert Environment(Device("cpu"), {"torch": "2"}) == Environment(Device("cpu"), {"torch": "2"})


def test_detecting_and_simulating_import_no_torch():
    code = (
        "import sys; from phyai.environment import Environment;"
        "Environment.detect('auto'); Environment.simulated('b200'); print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.stdout.strip() == "False", result.stdout + result.stderr


@pytest.mark.gpu
def test_the_driver_says_what_torch_says():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is here")
    for index in range(torch.cuda.device_count()):
        device = Environment.detect(f"cuda:{index}", libraries=CORE_LIBRARIES).device
        properties = torch.cuda.get_device_properties(index)
        assert device.name == properties.name
        assert device.arch == f"sm{properties.major}{properties.minor}"
        assert device.sm_count == properties.multi_processor_count
        assert device.memory_gb == pytest.approx(properties.total_memory / 1e9, rel=0.1)
