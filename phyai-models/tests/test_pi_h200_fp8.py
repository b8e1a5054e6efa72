"""π0.5 and π0 under the FP8 policies that ship for an H200: what is chosen there, and what comes out anywhere else."""

from pathlib import Path

import pytest
import torch
from phyai.policy import default_policy, load_policy
from phyai.quant import plan_from_policy
from phyai_models.pi.config import PiConfig
from phyai_models.pi.study import matrix_paths, study
from simulated import decisions

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples" / "pi05-tiny"
FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FAMILIES = ["pi05", "pi0"]


@pytest.fixture(scope="module")
def policies(catalog):
    return {family: load(f"{family}/h200_fp8.yaml", catalog) for family in FAMILIES}


def load(name, catalog):
    loaded = load_policy(ROOT / "policies" / name, catalog=catalog)
    assert not loaded.warnings
    return loaded.policy


@pytest.mark.parametrize("family", FAMILIES)
def test_the_language_models_products_but_attentions_output_are_quantized_and_nothing_else(family, policies):
    plan = plan_from_policy(policies[family].quantization)
    quantized = {path for path in matrix_paths(PiConfig.standard(family)).values() if plan.scheme(path) is not None}
    named = [(i, name) for i in range(18) for name in FEED_FORWARD] + [(i, n) for i in range(17) for n in PROJECTIONS]
    assert quantized == {f"{family}.language_model.layers.{i}.{name}" for i, name in named}
    assert {plan.scheme(path).name for path in quantized} == {"fp8_a8_channel"}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_h200_gets_fp8_products_in_the_prefix_and_one_launch_for_the_expert(family, catalog, policies):
    pytest.importorskip("phyai_backend_cuda")
    found = decisions("h200", policies[family], catalog, family=family)
    quantized = ("rms_norm_add_gated_mlp", "rms_norm_add_qkv_rope_kv_write", "qkv_rope_kv_write")  # the last: layer 0
    assert {op: found["prefix", op] for op in quantized} == {op: [f"cuda.{op}.fp8_a8_fast"] for op in quantized}
    assert found["expert", "expert_steps"] == ["cuda.expert_steps.persistent"]
    assert not any("fp8" in id for (role, _), ids in found.items() if role != "prefix" for id in ids)
    bf16 = decisions("h200", load(f"{family}/h200_bf16.yaml", catalog), catalog, family=family)
    others = {key: ids for key, ids in found.items() if key[1] not in quantized or key[0] != "prefix"}
    assert others == {key: bf16[key] for key in others}


def test_a_small_model_runs_under_it_anywhere(catalog, policies):
    found = study(TINY, catalog)
    want, got = found.answers(default_policy(), samples=2), found.answers(policies["pi05"], samples=2)
    cosine = torch.nn.functional.cosine_similarity(got.flatten(1), want.flatten(1))
    assert cosine.min() > 0.99
    assert not torch.equal(got, want)
