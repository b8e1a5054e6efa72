"""Which kernels π0.5 and π0 at real size are given on a GPU, under the policies that ship for it. No GPU is needed."""

from pathlib import Path

import pytest
from phyai.policy import default_policy, load_policy
from simulated import decisions

POLICIES = Path(__file__).parents[2] / "policies" / "pi05"
pytest.importorskip("phyai_backend_cuda")
pytest.importorskip("phyai_backend_flashinfer")

LAYERS_ONLY = "overrides:\n- {id: layers, match: {op: expert_steps}, restrict_to: decomposed.expert_steps}\n"


def policy(name, catalog, tmp_path=None, more="", family="pi05"):
    path = POLICIES.parent / family / name
    if more:
        text = path.read_text()
        path = tmp_path / name
        path.write_text(text + more)
    return load_policy(path, catalog=catalog).policy


def test_every_call_has_a_kernel_that_is_no_reference(catalog):
    found = decisions("h200", policy("h200_bf16.yaml", catalog), catalog)
    assert not {key for key, ids in found.items() if any(id.startswith("reference.") for id in ids)}


def test_the_vision_tower_adds_and_activates_inside_other_launches(catalog):
    found = decisions("h200", policy("h200_bf16.yaml", catalog), catalog)
    assert found["vision", "layer_norm_add"] == ["cuda.layer_norm_add"]
    assert found["vision", "patch_embedding"] == ["cuda.patch_embedding"]
    assert found["vision", "mlp"] == ["cuda.mlp.dense_16bit"]
    assert "cuda.gemm.dense_16bit" in found["vision", "gemm"]


ONE_BY_ONE = "overrides:\n- {id: one, match: {op: transformer_encoder}, restrict_to: decomposed.transformer_encoder}\n"


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize("name", ["h200_bf16.yaml", "h200_fp8.yaml"])
def test_the_vision_towers_layers_are_one_call_with_their_norms_in_products(name, family, catalog, tmp_path):
    found = decisions("h200", policy(name, catalog, family=family), catalog, family=family)
    assert found["vision", "transformer_encoder"] == ["cuda.transformer_encoder.folded"]
    many = decisions("h200", policy(name, catalog, family=family), catalog, family=family, batch=8)
    assert many["vision", "transformer_encoder"] == ["decomposed.transformer_encoder"]
    without = decisions("h200", policy(name, catalog, tmp_path, ONE_BY_ONE, family), catalog, family=family)
    assert without["vision", "transformer_encoder"] == ["decomposed.transformer_encoder"]


def test_a_rule_on_the_vision_towers_norms_rules_that_out(catalog, tmp_path):
    rule = "overrides:\n- {id: mine, match: {op: layer_norm_add, role: vision}, restrict_to: cuda.layer_norm_add}\n"
    found = decisions("h200", policy("h200_bf16.yaml", catalog, tmp_path, rule), catalog)
    assert found["vision", "transformer_encoder"] == ["decomposed.transformer_encoder"]


def test_attention_is_the_best_measured_for_each_shape(catalog):
    bucket = decisions("h200", policy("h200_bf16.yaml", catalog), catalog)
    exact = decisions("h200", policy("h200_bf16.yaml", catalog), catalog, fixed_lengths=True)
    assert bucket["vision", "attention"] == exact["vision", "attention"] == ["cuda.attention.short"]
    assert bucket["expert", "attention_paged"] == ["cuda.attention_paged.split"]
    assert exact["expert", "attention_paged"] == ["cuda.attention_paged.split"]
    assert exact["prefix", "attention_paged"] == ["cuda.attention_paged.prefill"]
    assert bucket["prefix", "attention_paged"] == ["cuda.attention_paged.prefill"]


@pytest.mark.parametrize("family", ["pi05", "pi0"])
@pytest.mark.parametrize(("batch", "want"), [(1, "cuda.expert_steps.persistent"), (8, "decomposed.expert_steps")])
def test_the_expert_is_one_launch_for_one_request(batch, want, family, catalog):
    chosen = policy("h200_bf16.yaml", catalog, family=family)
    found = decisions("h200", chosen, catalog, batch=batch, family=family)
    assert found["expert", "expert_steps"] == [want]


@pytest.mark.parametrize("family", ["pi05", "pi0"])
def test_a_policy_turns_the_one_launch_off(family, catalog, tmp_path):
    chosen = policy("h200_bf16.yaml", catalog, tmp_path, LAYERS_ONLY, family)
    found = decisions("h200", chosen, catalog, family=family)
    assert found["expert", "expert_steps"] == ["decomposed.expert_steps"]


def test_a_rule_on_the_experts_products_rules_the_one_launch_out(catalog, tmp_path):
    rule = "  - {id: mine, priority: 20, match: {op: gemm, role: expert}, restrict_to: 'torch.gemm.*'}\n"
    found = decisions("h200", policy("sm90_bf16.yaml", catalog), catalog)
    assert found["expert", "expert_steps"] == ["decomposed.expert_steps"]
    only = tmp_path / "only.yaml"
    only.write_text("schema: phyai.kernel/v1\nrules:\n" + rule)
    found = decisions("h200", load_policy(only, catalog=catalog).policy, catalog)
    assert found["expert", "expert_steps"] == ["decomposed.expert_steps"]


@pytest.mark.parametrize("device", ["rtx4090", "rtx5090", "b200"])
def test_where_nothing_was_measured_the_default_order_takes_no_reference_and_flashinfer_for_attention(device, catalog):
    found = decisions(device, default_policy(), catalog)
    assert not {key for key, ids in found.items() if any(id.startswith("reference.") for id in ids)}
    assert (
        found["expert", "attention_paged"] == found["prefix", "attention_paged"] == ["flashinfer.attention_paged.fa2"]
    )
