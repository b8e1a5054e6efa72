"""The benchmark's decision map: what is quickest, and the policy that says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from phyai.environment import Environment
from phyai.plugins import discover
from phyai.policy import load_policy
from phyai.quant import plan_from_policy
from phyai.resolver import resolve

from .humming_calls import facts

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def tool() -> Any:
    if not (BENCHMARKS / "humming_map.py").exists():
        pytest.skip("benchmarks/ comes with the repository, not with the distribution")
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import humming_map
    finally:
        sys.path.remove(str(BENCHMARKS))
    return humming_map


def result(layer: str, m: int, scheme: str, us: float, **more: float) -> dict[str, Any]:
    return {"layer": layer, "M": m, "scheme": scheme, "us": us, **more}


RESULTS = [
    result("expert.gate_up", 50, "cuBLAS bf16", 10.0), result("expert.gate_up", 50, "w4a16 g128", 5.0),
    result("expert.gate_up", 50, "mxfp4_a8", 4.0), result("expert.gate_up", 50, "w8a16 channel", 1.0, error=0.5),
    result("expert.gate_up", 50, "torch._scaled_mm fp8", 3.0),
    result("prefix.qkv", 968, "cuBLAS bf16", 10.0), result("prefix.qkv", 968, "fp8_a8 channel", 12.0),
    result("prefix.down", 968, "cuBLAS bf16", 10.0), result("prefix.down", 968, "fp8_a8 channel", 8.0),
    result("vision.o", 816, "cuBLAS bf16", 10.0), result("vision.o", 816, "int8_a8 channel", 9.0),
    {"layer": "expert.down", "M": 50, "scheme": "w4a16 g128", "problem": "RuntimeError: broken"},
]  # fmt: skip


def test_the_quickest_candidate_is_one_that_computes_the_right_thing(tool: Any) -> None:
    times = tool.times_of(RESULTS)
    assert tool.quickest(times, "expert.gate_up", 50) == "torch._scaled_mm fp8"
    assert tool.quickest(times, "expert.gate_up", 50, tuple(tool.SCHEMES)) == "mxfp4_a8"
    assert tool.quickest(times, "expert.down", 50) is None
    assert "torch._scaled_mm fp8 3.33x" in tool.table(times)


def test_the_policy_quantizes_what_is_quicker_so_and_sends_it_to_its_row(tool: Any, tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(tool.policy_text(tool.times_of(RESULTS), "H200"))
    catalog = discover()
    loaded = load_policy(file, catalog=catalog)
    assert not loaded.warnings
    plan = plan_from_policy(loaded.policy.quantization)
    wanted = {
        "pi05.expert.layers.3.mlp.up_proj": "humming.gemm.mxfp4_a8",
        "pi05.expert.layers.3.mlp.down_proj": None,
        "pi05.language_model.layers.3.self_attn.k_proj": None,
        "pi05.language_model.layers.3.mlp.down_proj": "humming.gemm.fp8_a8",
        "pi05.vision_tower.layers.3.self_attn.out_proj": "humming.gemm.int8_a8",
    }
    h200 = Environment.simulated("h200", libraries={"humming": "0.1.20", "triton": "3.6.0", "torch": "2.11.0"})
    for path, kernel in wanted.items():
        scheme = plan.scheme(path, "Linear")
        assert (scheme is None) == (kernel is None), path
        if scheme is not None:
            assert resolve(facts(scheme, 1152, 1152), catalog, loaded.policy, h200).kernel.id == kernel


def test_the_policy_names_what_was_not_measured(tool: Any) -> None:
    schemes = [s for s in tool.SCHEMES if s not in tool.VARIANTS]
    whole = [result("expert.qkv", 50, s, 2.0) for s in schemes] + [result("expert.qkv", 50, "cuBLAS bf16", 1.0)]
    whole += [result("prefix.down", 968, "cuBLAS bf16", 2.0), result("prefix.down", 968, "mxfp4_a16", 1.0)]
    text = tool.policy_text(tool.times_of(whole), "H200")
    assert "# expert.qkv is quickest in bf16.\n" in text
    assert "# expert.o was not measured.\n" in text
    assert "2.00 times cuBLAS's speed; not measured: w4a16 g128, " in text
    without = [r for r in whole if r["scheme"] != "mxfp4_a8"]
    assert "# expert.qkv is quickest in bf16; not measured: mxfp4_a8.\n" in tool.policy_text(
        tool.times_of(without), "H200"
    )


def test_where_bf16_is_quickest_everywhere_nothing_is_quantized(tool: Any, tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    file.write_text(tool.policy_text(tool.times_of([result("expert.qkv", 50, "cuBLAS bf16", 1.0)]), "H200"))
    assert not plan_from_policy(load_policy(file, catalog=discover()).policy.quantization).rules


def test_the_picture_is_drawn(tool: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    tool.draw(tool.times_of(RESULTS), tmp_path / "map.png", "H200")
    assert (tmp_path / "map.png").stat().st_size > 10_000
