"""π0.5 under the policies that ship for an H200 with a quantized expert: what is chosen there, and what comes out anywhere
else."""

from pathlib import Path

import pytest
import torch
from phyai.policy import default_policy, load_policy
from phyai.quant import plan_from_policy
from phyai_models.pi.config import PiConfig
from phyai_models.pi.study import matrix_paths, study
from simulated import decisions, load

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples" / "pi05-tiny"
POLICIES = {"h200_int4_expert": ("int4", "w4a16_g128"), "h200_fp8_expert": ("fp8", "fp8_a16_channel")}
EXPERT = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
PREFIX = EXPERT[4:]


@pytest.fixture(scope="module", params=POLICIES)
def shipped(request, catalog):
    loaded = load_policy(ROOT / "policies" / "pi05" / f"{request.param}.yaml", catalog=catalog)
    assert not loaded.warnings
    return loaded.policy, *POLICIES[request.param]


def test_the_expert_and_the_prefixs_feed_forward_are_quantized_and_nothing_else(shipped):
    policy, _, scheme = shipped
    plan = plan_from_policy(policy.quantization)
    found = {path: plan.scheme(path) for path in matrix_paths(PiConfig.standard("pi05")).values()}
    found = {path: one.name for path, one in found.items() if one is not None}
    wanted = {f"pi05.expert.layers.{i}.{name}": scheme for i in range(18) for name in EXPERT}
    wanted |= {f"pi05.language_model.layers.{i}.{name}": "fp8_a8_channel" for i in range(18) for name in PREFIX}
    assert found == wanted


def test_an_h200_runs_the_expert_in_launches_that_overlap(shipped, catalog):
    pytest.importorskip("phyai_backend_cuda")
    policy, variant, _ = shipped
    found = decisions("h200", policy, catalog, fixed_lengths=True)
    for op in ("qkv_rope_kv_write", "gemm_gated_residual", "gated_mlp_gated_residual"):
        assert found["expert", op] == [f"cuda.{op}.skinny_{variant}"]
    assert found["expert", "attention_paged"] == ["cuda.attention_paged.split"]
    assert found["expert", "ada_rms_norm"] == ["cuda.ada_rms_norm.overlap"]
    assert ("expert", "expert_steps") not in found
    assert found["prefix", "gated_mlp"] == ["cuda.gated_mlp.fp8_a8_fast"]


def test_there_its_matrices_lie_as_those_launches_read_them(shipped, catalog):
    pytest.importorskip("phyai_backend_cuda")
    model = load("h200", shipped[0], catalog, fixed_lengths=True)
    layouts = {
        weight.layout
        for site in model.dispatcher.sites if site.static["role"] == "expert"
        for weight in site.weights.values() if hasattr(weight, "layout") and hasattr(weight, "scheme")
    }  # fmt: skip
    assert layouts == {"skinny"}


def test_a_small_model_runs_under_it_anywhere(shipped, catalog):
    found = study(TINY, catalog)
    want, got = found.answers(default_policy(), samples=2), found.answers(shipped[0], samples=2)
    cosine = torch.nn.functional.cosine_similarity(got.flatten(1), want.flatten(1))
    assert cosine.min() > (0.9 if shipped[1] == "int4" else 0.99)
    assert not torch.equal(got, want)
