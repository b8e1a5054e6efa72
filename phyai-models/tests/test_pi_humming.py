"""π0.5 at real size under Humming's presets on an H200, which is not here: who computes what, what is compiled."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from phyai.dispatch.ahead import awaited
from phyai.policy import load_policy
from phyai.quant import QuantPlan, QuantScheme
from phyai.quant.realize import quantize_weight
from phyai.quant.scheme import NVFP4
from phyai_models.layers import Scope
from phyai_models.layers.linear import LinearParameters, Shard
from phyai_models.weights import RandomSource
from simulated import decisions, load

PRESETS = sorted((Path(__file__).parents[2] / "policies" / "pi05").glob("humming_*.yaml"))
pytest.importorskip("phyai_backend_humming")
pytest.importorskip("phyai_backend_flashinfer")


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_the_projections_of_both_towers_go_to_the_presets_row_and_nothing_to_a_reference(preset, catalog):
    policy = load_policy(preset, catalog=catalog).policy
    row = next(rule.restriction.kernels[0] for rule in policy.rules if rule.id == "packed-weights")
    found = decisions("h200", policy, catalog, fixed_lengths=True)
    block = ("gated_mlp.gate_up", "gated_mlp.down")
    added = (f"gated_mlp_gated_residual.{part}" for part in block)
    parts = {"prefix": ("gemm", *block), "expert": ("gemm_gated_residual.gemm", *added)}
    for role, names in parts.items():
        assert {found[role, part][0] for part in ("qkv_rope_kv_write.qkv", *names)} == {row}
    assert not {key for key, ids in found.items() if any(id.startswith("reference.") for id in ids)}


def test_every_projection_is_compiled_for_the_rows_of_its_tower(catalog):
    policy = load_policy(PRESETS[0], catalog=catalog).policy
    model = load("h200", policy, catalog, fixed_lengths=True)
    waiting = [one for one in awaited(model.dispatcher) if one.kernel.backend == "humming"]
    assert {(one.facts["role"], one.rows) for one in waiting} == {("prefix", (256, 968)), ("expert", (50, 50))}
    shapes = Counter((one.facts["role"], one.facts["shape.N"], one.facts["shape.K"]) for one in waiting)
    assert shapes == {
        ("prefix", 2560, 2048): 17, ("prefix", 512, 2048): 1, ("prefix", 2048, 2048): 17, ("prefix", 32768, 2048): 17,
        ("prefix", 2048, 16384): 17, ("expert", 2560, 1024): 18, ("expert", 1024, 2048): 18,
        ("expert", 8192, 1024): 18, ("expert", 1024, 4096): 18,
    }  # fmt: skip


def test_shards_of_a_format_with_a_second_scale_have_it_in_common_and_stay_one_matrix():
    source, shards = (
        RandomSource(3),
        [Shard(f"m.{name}", name, rows) for name, rows in (("q", 64), ("k", 16), ("v", 16))],
    )
    plan = QuantPlan(default=QuantScheme(NVFP4))
    scope = Scope(None, torch.device("cpu"), "m", "", torch.float32, torch.float32, quantization=plan)
    (fused,) = LinearParameters(scope, 32, shards).load(source)
    whole = torch.empty(96, 32)
    for shard, part in zip(shards, whole.split([64, 16, 16]), strict=True):
        source.take(f"{shard.source}.weight", part)
    want = quantize_weight(whole, QuantScheme(NVFP4))
    assert torch.equal(fused.weight.codes, want.codes)
    assert torch.equal(fused.weight.second_scale, want.second_scale)
    assert fused.weight.shape == (96, 32)
