"""π0.5 under the policy with a quantized expert that ships for an H200: what is chosen there, and what comes out
anywhere else."""

from pathlib import Path

import pytest
import torch
from phyai.policy import default_policy, load_policy
from phyai.quant import plan_from_policy
from phyai_models.pi.config import PiConfig
from phyai_models.pi.study import matrix_paths, study
from simulated import decisions, inference, load

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples" / "pi05-tiny"
POLICY = ROOT / "policies" / "pi05" / "h200_int4_expert.yaml"
EXPERT = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
PREFIX = [(i, name) for i in range(18) for name in EXPERT[4:]] + [(i, name) for i in range(17) for name in EXPERT[:3]]


@pytest.fixture(scope="module")
def policy(catalog):
    loaded = load_policy(POLICY, catalog=catalog)
    assert not loaded.warnings
    return loaded.policy


def test_the_expert_and_the_prefix_but_attentions_output_are_quantized_and_nothing_else(policy):
    plan = plan_from_policy(policy.quantization)
    found = {path: plan.scheme(path) for path in matrix_paths(PiConfig.standard("pi05")).values()}
    found = {path: one.name for path, one in found.items() if one is not None}
    wanted = {f"pi05.expert.layers.{i}.{name}": "w4a16_g128" for i in range(18) for name in EXPERT}
    wanted |= {f"pi05.language_model.layers.{i}.{name}": "fp8_a8_channel" for i, name in PREFIX}
    assert found == wanted


def test_an_h200_runs_the_expert_in_launches_that_overlap(policy, catalog):
    pytest.importorskip("phyai_backend_cuda")
    found = decisions("h200", policy, catalog, fixed_lengths=True)
    for op in ("qkv_rope_kv_write", "gemm_gated_residual", "gated_mlp_gated_residual"):
        assert found["expert", op] == [f"cuda.{op}.skinny_int4"]
    assert found["expert", "attention_paged"] == ["cuda.attention_paged.split"]
    assert found["expert", "ada_rms_norm"] == ["cuda.ada_rms_norm.overlap"]
    norm = next(d for site, d in inference("h200", policy, catalog) if site.op.name == "ada_rms_norm")
    assert norm.params == {"release": "late"}  # behind a long launch, quantized ones are not to pile up
    assert ("expert", "expert_steps") not in found
    for op in ("rms_norm_add_gated_mlp", "rms_norm_add_qkv_rope_kv_write", "qkv_rope_kv_write"):
        assert found["prefix", op] == [f"cuda.{op}.fp8_a8_fast"]


def test_there_its_matrices_lie_as_those_launches_read_them(policy, catalog):
    pytest.importorskip("phyai_backend_cuda")
    model = load("h200", policy, catalog, fixed_lengths=True)
    layouts = {
        weight.layout
        for site in model.dispatcher.sites if site.static["role"] == "expert"
        for weight in site.weights.values() if hasattr(weight, "layout") and hasattr(weight, "scheme")
    }  # fmt: skip
    assert layouts == {"skinny"}


def test_a_small_model_runs_under_it_anywhere(policy, catalog):
    found = study(TINY, catalog)
    want, got = found.answers(default_policy(), samples=2), found.answers(policy, samples=2)
    cosine = torch.nn.functional.cosine_similarity(got.flatten(1), want.flatten(1))
    assert cosine.min() > 0.9
    assert not torch.equal(got, want)
