"""Rules that were written before norms and residuals were joined with blocks, on π0.5 as an H200 would run it."""

import pytest
from phyai.policy import load_policy
from simulated import decisions

FP8 = """
schema: phyai.kernel/v1
quantization:
  method: rtn
  rules:
    - id: fp8
      match: {glob: "*.language_model.*.mlp.*_proj"}
      scheme: {weight: {dtype: fp8_e4m3, granularity: channel}, input: {dtype: fp8_e4m3, granularity: token}}
      layout: plain
"""


@pytest.mark.parametrize(
    ("rule", "call", "kernels"),
    [
        ("match: {op: gated_mlp, role: prefix}, use: cuda.gated_mlp.fp8_a8_fast",
         ("prefix", "rms_norm_add_gated_mlp.block"), ["cuda.gated_mlp.fp8_a8_fast"]),
        ("match: {op: rms_norm_add}, restrict_to: 'flashinfer.*'",
         ("prefix", "rms_norm_add_gated_mlp.norm"), ["flashinfer.rms_norm_add"]),
        ("match: {op: gated_residual}, use: reference.gated_residual",
         ("expert", "gated_mlp_gated_residual.gated_residual"), ["reference.gated_residual"]),
        ("match: {layer: '*.expert.layers.*.o_proj'}, use: torch.gemm.bf16",
         ("expert", "gemm_gated_residual.gemm"), ["torch.gemm.bf16"]),
        ("match: {layer: '*.expert.layers.*.mlp'}, use: cuda.gated_mlp.skinny_16bit",
         ("expert", "gated_mlp_gated_residual.gated_mlp"), ["cuda.gated_mlp.skinny_16bit"]),
        ("match: {layer: '*.language_model.*.mlp*'}, restrict_to: ['torch.*', 'flashinfer.*']",
         ("prefix", "rms_norm_add_gated_mlp.block.down"), ["torch.gemm.fp8_channel"]),
    ],
)  # fmt: skip
def test_a_restriction_of_a_call_that_was_joined_to_another_still_rules(rule, call, kernels, tmp_path, catalog):
    found = under(f"{FP8}overrides:\n  - {{id: mine, {rule}}}\n", tmp_path, catalog)
    role, parts = call
    whole = parts.split(".")[0]
    assert (found[role, whole], found[call]) == ([f"decomposed.{whole}"], kernels)


def test_a_preference_for_a_role_reaches_what_has_a_kernel_of_it(tmp_path, catalog):
    found = under(f"{FP8}rules:\n  - {{id: mine, match: {{role: expert}}, prefer: 'torch.*'}}\n", tmp_path, catalog)
    assert found["expert", "gemm_gated_residual.gemm"] == ["torch.gemm.bf16"]
    assert found["expert", "gated_mlp_gated_residual.gated_mlp.gate_up"] == ["torch.gemm.bf16"]


def under(text, folder, catalog):
    pytest.importorskip("phyai_backend_cuda")
    pytest.importorskip("phyai_backend_flashinfer")
    path = folder / "policy.yaml"
    path.write_text(text)
    loaded = load_policy(path, catalog=catalog)
    assert not loaded.warnings
    return decisions("h200", loaded.policy, catalog)
