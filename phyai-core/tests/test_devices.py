"""The device catalogue: complete, consistent, sourced, and found by any spelling."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.devices import DTYPES_WITH_PEAKS, find_device, known_devices
from phyai.environment import DeviceError

#: The devices that the project promises, with the compute capability that NVIDIA's table of CUDA GPUs gives.
PROMISED = {
    "T4": "sm75", "A100": "sm80", "A10": "sm86", "A40": "sm86", "RTX 3090": "sm86", "AGX Orin": "sm87",
    "L4": "sm89", "L40S": "sm89", "RTX 4090": "sm89", "H100": "sm90", "H100 PCIe": "sm90", "H200": "sm90",
    "B200": "sm100", "B300": "sm103", "Thor": "sm110", "RTX 5090": "sm120", "RTX PRO 6000": "sm120",
    "DGX Spark": "sm121", "GB10": "sm121", "A100 PCIe 80GB": "sm80", "A100-SXM4-40GB": "sm80",
}  # fmt: skip

#: Element types that each tensor-core generation has, by NVIDIA's architecture documents.
HAS_BF16, HAS_FP8, HAS_FP4 = 80, 89, 100


@pytest.mark.parametrize(("name", "arch"), PROMISED.items())
def test_promised_devices_are_found_with_their_compute_capability(name, arch):
    assert find_device(name).arch == arch


@pytest.mark.parametrize("arch", sorted(set(PROMISED.values())))
def test_each_architecture_has_exactly_one_representative(arch):
    assert [spec.arch for spec in known_devices() if spec.representative].count(arch) == 1
    assert find_device(arch).arch == arch


def test_architectures_are_in_ascending_order():
    order = [int(spec.arch.removeprefix("sm")) for spec in known_devices()]
    assert order == sorted(order)


#: Boost clock in MHz, and dense operations per clock and SM with fp32 accumulation, as NVIDIA's documents give them.
CLOCK_AND_RATE = {
    "t4": (1590, "fp16", 1024), "a100-sxm-80gb": (1410, "fp16", 2048), "a100-pcie-40gb": (1410, "fp16", 2048),
    "rtx3090": (1695, "fp16", 512), "a10": (1695, "fp16", 1024), "a40": (1740, "fp16", 1024),
    "orin": (1300, "int8", 4096), "rtx4090": (2520, "fp16", 512), "l4": (2040, "fp16", 1024),
    "l40s": (2490, "fp16", 1024), "h200": (1830, "fp16", 4096), "h100-sxm": (1830, "fp16", 4096),
    "h100-pcie": (1620, "fp16", 4096), "thor": (1575, "fp4", 32768), "rtx5090": (2407, "fp16", 512),
    "rtx-pro-6000": (2617, "fp16", 1024), "gb10": (2550, "fp4", 4096),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOCK_AND_RATE)
def test_peaks_are_sm_count_times_clock_times_rate(name):
    clock, dtype, rate = CLOCK_AND_RATE[name]
    spec = find_device(name)
    assert spec.sm_count * clock * 1e6 * rate / 1e12 == pytest.approx(spec.peaks[dtype], rel=0.005)


@pytest.mark.parametrize("spec", known_devices(), ids=lambda spec: spec.name)
def test_element_types_fit_the_generation_and_double_as_they_halve(spec):
    generation = int(spec.arch.removeprefix("sm"))
    assert spec.sources
    assert spec.bandwidth_gb_s
    assert set(spec.peaks) <= set(DTYPES_WITH_PEAKS)
    assert ("bf16" in spec.peaks) <= (generation >= HAS_BF16)
    assert ("fp8" in spec.peaks) <= (generation >= HAS_FP8)
    assert ("fp4" in spec.peaks) <= (generation >= HAS_FP4)
    if {"fp16", "fp8"} <= set(spec.peaks):
        assert spec.peaks["fp8"] / spec.peaks["fp16"] == pytest.approx(2, rel=0.02)
    assert spec.peaks.get("bf16", 0) in (0, spec.peaks.get("fp16"))


def test_peak_of_an_element_type_that_is_not_there_is_none():
    assert find_device("a100").peak("fp8") is None
    assert find_device("a100").peak("bf16") == 312


@pytest.mark.parametrize("spec", known_devices(), ids=lambda spec: spec.name)
def test_every_spelling_finds_its_device(spec):
    for spelling in (spec.name, spec.title, *spec.aliases, spec.name.upper(), spec.title.replace(" ", "_")):
        assert find_device(spelling) is spec


def test_no_spelling_belongs_to_two_devices():
    def key(text):
        return "".join(c for c in text.lower() if c.isalnum())

    spellings = [key(s) for spec in known_devices() for s in {spec.name, *spec.aliases}]
    assert len(spellings) == len(set(spellings))


def test_a_misspelt_device_gets_suggestions():
    with pytest.raises(DeviceError, match="did you mean h200"):
        find_device("h20O")
    with pytest.raises(DeviceError, match="did you mean sm90"):
        find_device("sm9O")
    with pytest.raises(DeviceError, match="known devices: t4"):
        find_device("quantum")


@given(st.text(max_size=30))
@settings(max_examples=100)
def test_any_text_finds_a_device_or_is_refused_by_name(text):
    spellings = {re.sub("[^a-z0-9]", "", s.lower()) for d in known_devices() for s in (d.name, *d.aliases, d.arch)}
    if re.sub("[^a-z0-9]", "", text.lower()) in spellings:
        assert find_device(text) in known_devices()
    else:
        with pytest.raises(DeviceError, match=re.escape(repr(text))):
            find_device(text)
