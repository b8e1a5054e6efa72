"""π0.5 under the FP8 policy that ships for an H200: what is chosen there, and what comes out anywhere else."""

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
PRODUCTS = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def policy(catalog):
    loaded = load_policy(ROOT / "policies" / "pi05" / "h200_fp8.yaml", catalog=catalog)
    assert not loaded.warnings
    return loaded.policy


def test_the_feed_forward_of_the_language_model_is_quantized_and_nothing_else(policy):
    plan = plan_from_policy(policy.quantization)
    quantized = {path for path in matrix_paths(PiConfig.standard("pi05")).values() if plan.scheme(path) is not None}
    assert quantized == {f"pi05.language_model.layers.{i}.{name}" for i in range(18) for name in PRODUCTS}
    assert {plan.scheme(path).name for path in quantized} == {"fp8_a8_channel"}


def test_an_h200_gets_fp8_products_in_the_prefix_and_one_launch_for_the_expert(catalog, policy):
    pytest.importorskip("phyai_backend_cuda")
    found = decisions("h200", policy, catalog)
    assert found["prefix", "gated_mlp"] == ["cuda.gated_mlp.fp8_a8_fast"]
    assert found["expert", "expert_steps"] == ["cuda.expert_steps.persistent"]
    assert not any("fp8" in id for (role, _), ids in found.items() if role != "prefix" for id in ids)
    bf16 = decisions("h200", load_policy(ROOT / "policies/pi05/h200_bf16.yaml", catalog=catalog).policy, catalog)
    others = {key: ids for key, ids in found.items() if key != ("prefix", "gated_mlp")}
    assert others == {key: ids for key, ids in bf16.items() if not key[1].startswith("gated_mlp") or key[0] != "prefix"}


def test_a_small_model_runs_under_it_anywhere(catalog, policy):
    found = study(TINY, catalog)
    want, got = found.answers(default_policy(), samples=2), found.answers(policy, samples=2)
    cosine = torch.nn.functional.cosine_similarity(got.flatten(1), want.flatten(1))
    assert cosine.min() > 0.99
    assert not torch.equal(got, want)
