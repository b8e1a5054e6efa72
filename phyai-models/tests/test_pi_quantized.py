"""Quantizing a π model while it is loaded: the policy's section, layer by layer."""

import logging

import pytest
import torch
from phyai.engine.decisions import decision_rows
from phyai.errors import PolicyError
from phyai.policy import parse_policy
from phyai.quant import plan_from_policy
from phyai.quant.realize import dequantize, quantize_weight
from phyai_models.pi.hosted import LerobotBatch
from pi_cases import copy_case, cosine, engine, random_batch, random_checkpoint, relative_error, run
from safetensors.torch import load_file, save_file

INT8 = """
schema: phyai.kernel/v1
quantization:
  method: rtn
  rules:
  - match: {any_of: [{glob: "*.language_model.*_proj"}, {glob: "*.expert.*_proj"}]}
    scheme: {weight: {dtype: int8, granularity: channel}, input: null}
"""


def policy(text, catalog):
    return parse_policy(text, catalog=catalog).policy


def roundtripped(directory, plan, names):
    """The checkpoint with every matrix that ``plan`` reaches replaced by what its codes stand for."""
    state = load_file(directory / "model.safetensors")
    for name, path in names.items():
        scheme = plan.scheme(path)
        if scheme is not None:
            state[f"{name}.weight"] = dequantize(quantize_weight(state[f"{name}.weight"], scheme))
    save_file(state, directory / "model.safetensors")
    return directory


def module_paths(directory):
    """Checkpoint name to module path, of every matrix in the two Gemma towers."""
    towers = {
        "paligemma_with_expert.paligemma.model.language_model": "pi05.language_model",
        "paligemma_with_expert.gemma_expert.model": "pi05.expert",
    }
    names = [
        k.removesuffix(".weight") for k in load_file(directory / "model.safetensors") if k.endswith("_proj.weight")
    ]
    return {n: f"{new}{n.removeprefix(old)}" for old, new in towers.items() for n in names if n.startswith(old)}


EXPERT_INT8 = '[{match: {glob: "*.expert.*.self_attn.?_proj"}, scheme: {weight: {dtype: int8, granularity: channel}}}]'
EXPERT_INT4 = '[{match: {glob: "*.expert.*_proj"}, scheme: {weight: {dtype: int4, group_size: 8}}}]'
PREFIX_FP8 = '[{match: {glob: "*.language_model.*.mlp.*"}, scheme: {weight: {dtype: fp8_e4m3, granularity: tensor}}}]'
# Shards of one fused matrix with different forms stay products of their own.
ONLY_KEYS = "[{match: {name: k_proj}, scheme: {weight: {dtype: int8, granularity: channel}}}]"
UNLIKE = """
  - {match: {name: up_proj}, scheme: {weight: {dtype: int4, group_size: 8}}}
  - {match: {name: gate_proj}, scheme: {weight: {dtype: int8, granularity: tensor}}}
"""


@pytest.mark.parametrize("rules", [EXPERT_INT8, EXPERT_INT4, PREFIX_FP8, ONLY_KEYS, UNLIKE])
def test_a_quantized_engine_equals_one_with_the_rounded_weights(rules, tmp_path, catalog):
    sizes = {"width": 32, "expert_width": 16, "head_dim": 8}
    directory = random_checkpoint(tmp_path / "original", "pi05", **sizes)
    rounded = random_checkpoint(tmp_path / "rounded", "pi05", **sizes)
    chosen = policy(f"schema: phyai.kernel/v1\nquantization:\n  method: rtn\n  rules: {rules}\n", catalog)
    plan = plan_from_policy(chosen.quantization)
    roundtripped(rounded, plan, module_paths(rounded))
    batch = random_batch(directory)
    got = run(directory, batch, policy=chosen, catalog=catalog)
    want = run(rounded, batch, catalog=catalog)
    plain = run(directory, batch, catalog=catalog)
    assert relative_error(got["actions"], want["actions"]) < 1e-4
    assert relative_error(want["actions"], plain["actions"]) > 1e-4


def test_decisions_say_what_is_quantized(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", width=32)
    with engine(directory, catalog=catalog, policy=policy(INT8, catalog)) as running:
        running.step(LerobotBatch(random_batch(directory)))
        schemes = {
            decision.facts["layer"]: decision.facts.get("quant.scheme")
            for site in running.dispatcher.report().sites
            for decision in site.decisions
            if decision.op == "gemm"
        }
        rows = decision_rows(running.dispatcher.report())
    for layer, scheme in schemes.items():
        inside = ".language_model." in layer or (".expert." in layer and "dense" not in layer)
        assert (scheme is not None) == inside, layer
    assert "reference.gemm.weight_only" in {row.kernel for row in rows if row.role == "expert"}
    assert not any("weight_only" in row.kernel for row in rows if row.role == "vision")


def test_an_int8_model_stays_near_its_original(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi0", width=32)
    batch = random_batch(directory)
    got = run(directory, batch, policy=policy(INT8, catalog), catalog=catalog)["actions"]
    assert cosine(got, run(directory, batch, catalog=catalog)["actions"]) > 0.999


def test_separate_products_are_reported(tmp_path, catalog, caplog):
    directory = random_checkpoint(tmp_path, "pi05", depth=1)
    text = INT8.replace('any_of: [{glob: "*.language_model.*_proj"}, {glob: "*.expert.*_proj"}]', "name: v_proj")
    with (
        caplog.at_level(logging.INFO, logger="phyai.models"),
        engine(directory, catalog=catalog, policy=policy(text, catalog)),
    ):
        pass
    assert "k_proj" in caplog.text
    assert "separate GEMMs" in caplog.text


def test_a_section_that_is_wrong_is_refused(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    with pytest.raises(PolicyError, match="int9"):
        engine(directory, catalog=catalog, policy=policy(INT8.replace("int8", "int9"), catalog))


def test_weights_that_are_not_finite_are_named_before_they_are_rounded(tmp_path, catalog):
    def poison(state):
        state["model.paligemma_with_expert.gemma_expert.model.layers.0.mlp.up_proj.weight"][0, 0] = torch.nan
        return state

    directory = copy_case("pi05_a", tmp_path, tensors=poison)
    with pytest.raises(Exception, match=r"NaN or infinite values(.|\n)*layers\.0\.mlp\.up_proj"):
        engine(directory, catalog=catalog, policy=policy(INT8, catalog))
