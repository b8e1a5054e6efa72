"""Recognizing quantization configurations: what is loaded, what is refused and why."""

import functools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.quant.importers import BUILTIN, Importer, Recognized, Refuse, Refused
from phyai.quant.recognition import recognize
from quant_cases import CONFIGS, INDEX
from safetensors.torch import save_file


def plan(name):
    outcome = recognize(CONFIGS / name)
    assert isinstance(outcome, Recognized), outcome
    return outcome.plan


def config(tmp_path, body, name="config.json"):
    (tmp_path / name).write_text(json.dumps(body))
    return recognize(tmp_path)


def names(outcome_plan, *layers):
    return [s.name if (s := outcome_plan.scheme(layer)) else None for layer in layers]


#: Where the index allows both, what this reader does.
BOTH = {"mo_w4a8_awq_short.json": True, "mxfp8_flat.json": True, "mxfp4_gpt_oss.json": False}


@pytest.mark.parametrize("entry", INDEX, ids=lambda e: e["file"])
def test_every_configuration_has_the_outcome_of_the_index(entry):
    outcome = recognize(CONFIGS / entry["file"])
    wanted = BOTH.get(entry["file"], entry["outcome"].startswith("recognise"))
    assert isinstance(outcome, Recognized if wanted else Refused), outcome


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("ct_recipe_two_groups_no_method.json", "quant_method is missing"),
        ("ct_fakequant_sparseml.json", "sparseml"),
        ("ct_unknown_format.json", "nvfp4_e2m1_ue8m0"),
        ("ct_upper_case_no_groups.json", "config_groups is missing"),
        ("w4afp8_unknown.json", "w4afp8"),
        ("mxfp4_gpt_oss.json", "mixture-of-experts"),
        ("bnb_nf4.json", "bitsandbytes 4-bit nf4 with doubly quantized scales"),
        ("bnb_int8.json", "bitsandbytes 8-bit"),
        ("bnb_shorthand.json", "bitsandbytes 4-bit"),
        ("autoround_mxfp4.json", "auto_round:llm_compressor"),
        ("quark_mxfp4.json", "quark"),
        ("torchao_string_form.json", "int4_weight_only"),
    ],
)
def test_refusals_say_what_is_not_supported(file, words):
    assert words in str(recognize(CONFIGS / file))


def test_a_tool_that_is_not_named_is_named():
    assert recognize(CONFIGS / "bnb_shorthand.json").method == "bitsandbytes"


def test_a_configuration_without_its_tensors_is_refused(tmp_path):
    """Nothing is taken for BF16 because its codes are missing."""
    save_file({"lm_head.weight": torch.zeros(4, 4), "fc.weight": torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    outcome = recognize(tmp_path)
    assert isinstance(outcome, Refused)
    assert "says fp8, but no tensor is stored quantized" in outcome.reason


def test_nested_text_config_covers_the_text_model_only():
    p = plan("ct_int4_text_config_nested.json")
    experts = "model.layers.3.mlp.experts.7.down_proj"
    dense = "model.layers.0.mlp.down_proj"
    vision = "vision_tower.blocks.0.mlp.fc1"
    assert names(p, experts, dense, "lm_head", "model.layers.1.self_attn.q_proj", vision) == [
        "w4a16_g32", None, None, None, None,
    ]  # fmt: skip


def test_params_json_mixes_a_tensor_scale_with_dynamic_tokens():
    scheme = plan("ct_params_json_fp8.json").scheme("layers.0.attention.wq")
    assert (scheme.weight.granularity, scheme.input.granularity, scheme.input.dynamic) == ("tensor", "token", True)
    assert names(plan("ct_params_json_fp8.json"), "output", "lm_head") == [None, None]


def test_static_actorder_has_no_group_index():
    assert plan("ct_int4_actorder_static.json").scheme("model.layers.0.mlp.up_proj").facts()["quant.g_idx"] is False


def test_trailing_star_excludes_stop_at_the_dot():
    p = plan("mo_nvfp4_exclude_globs.json")
    layers = [f"model.layers.{i}.self_attn.o_proj" for i in (1, 10, 12, 61)]
    assert names(p, *layers) == [None, "nvfp4_a4", "nvfp4_a4", None]


def test_exact_excludes_are_not_prefixes():
    p = plan("mo_nvfp4_exclude_names.json")
    assert names(p, "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.q_b_proj") == [None, "nvfp4_a4"]
    shards = p.shards("model.layers.1.self_attn.qkv_proj")
    assert [s.name if s else None for s in shards.values()] == [None, "nvfp4_a4", "nvfp4_a4"]


def test_mixed_precision_leaves_unlisted_layers_alone():
    p = plan("mo_mixed_fp8_w4a16.json")
    head = "model.language_model.layers."
    assert names(p, head + "3.self_attn.q_proj", head + "3.self_attn.k_proj", "lm_head", "mtp.layers.0.fc") == [
        "fp8_a8_tensor_static", None, "nvfp4_a16", None,
    ]  # fmt: skip
    q, k, gate = names(
        plan("mo_mixed_unquantized_entry.json"),
        *(f"model.layers.0.{n}" for n in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj")),
    )
    assert (q, k, gate) == ("fp8_a8_tensor_static", "fp8_a8_channel", None)


def test_key_value_cache_is_reported():
    assert recognize(CONFIGS / "mo_nvfp4_kv_fp8.json").kv_cache == {"scheme": "FP8"}


def test_fp8_blocks_skip_the_embedding():
    p = plan("fp8_block_skip_embed.json")
    assert names(p, "model.embed_tokens", "lm_head", "model.layers.0.mlp.up_proj") == [
        None,
        None,
        "fp8_a8_block128x128",
    ]


CT = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}


def groups(**targets):
    bits = {"a": INT4, "b": INT8}
    return {"config_groups": {k: {"targets": v, "weights": bits[k]} for k, v in targets.items()}}


def test_exact_names_come_before_expressions_before_classes(tmp_path):
    body = {**CT, **groups(a=["Linear", "re:.*b_proj"], b=["m.b_proj", "re:.*a_proj"])}
    p = config(tmp_path, {"quantization_config": body}).plan
    assert names(p, "m.b_proj", "n.b_proj", "m.a_proj", "m.c") == [
        "w8a16_channel",
        "w4a16_g32",
        "w8a16_channel",
        "w4a16_g32",
    ]


def test_expressions_are_tried_in_alphabetical_order(tmp_path):
    body = {**CT, **groups(a=["re:m.*"], b=["re:.*x"])}
    assert names(config(tmp_path, {"quantization_config": body}).plan, "m.x") == ["w8a16_channel"]


def test_a_group_may_be_the_name_of_a_preset(tmp_path):
    body = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"NVFP4A16": ["Linear"]},
    }
    assert names(config(tmp_path, {"quantization_config": body}).plan, "m.x") == ["nvfp4_a16"]


def test_compressed_sparsity_is_refused(tmp_path):
    sparse = {"sparsity_config": {"format": "sparse-24-bitmask"}}
    outcome = config(tmp_path, {"quantization_config": {**CT, **groups(a=["Linear"]), **sparse}})
    assert "sparse-24-bitmask" in str(outcome)


def test_malformed_patterns_are_refused(tmp_path):
    body = {**CT, **groups(a=["re:(a"])}
    assert "regular expression" in str(config(tmp_path, {"quantization_config": body}))


def test_rotations_are_refused(tmp_path):
    body = {**CT, **groups(a=["Linear"]), "transform_config": {"config_groups": {"R1": {}}}}
    assert "transform_config" in str(config(tmp_path, {"quantization_config": body}))


def test_two_configurations_must_agree(tmp_path):
    inline = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}
    (tmp_path / "config.json").write_text(json.dumps(inline))
    outcome = config(tmp_path, {"quantization": {"quant_algo": "NVFP4", "group_size": 16}}, "hf_quant_config.json")
    assert isinstance(outcome, Refused)
    assert "FP8" in outcome.reason
    assert "NVFP4" in outcome.reason


def test_no_configuration_means_not_quantized(tmp_path):
    assert config(tmp_path, {"model_type": "gemma"}) is None


def test_a_third_party_importer_is_asked_first(tmp_path):
    def recognize_mine(found, checkpoint):
        if found.body.get("quant_method") != "mine":
            return
        raise Refuse("mine is not ready", "theirs")

    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mine"}}))
    outcome = recognize(tmp_path, (Importer("mine", recognize_mine), *BUILTIN))
    assert (outcome.reason, outcome.instead) == ("mine is not ready", "theirs")


@pytest.mark.parametrize(
    "body",
    [
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {},
                "kv_cache_scheme": {"num_bits": 8},
            }
        },
        {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}},
    ],
)
def test_only_the_key_value_cache_may_be_quantized(tmp_path, body):
    outcome = config(tmp_path, body)
    assert outcome.kv_cache["scheme"]
    assert names(outcome.plan, "model.layers.0.mlp.up_proj") == [None]


@pytest.mark.parametrize("value", ["int8", [1], {"bits": 4, "group_size": 64}])
def test_configurations_of_no_tool_are_refused(tmp_path, value):
    assert "quant_method is missing" in str(config(tmp_path, {"quantization_config": value}))


def test_the_older_key_needs_no_method(tmp_path):
    body = {**groups(a=["Linear"]), "format": "pack-quantized"}
    assert names(config(tmp_path, {"compression_config": body}).plan, "x") == ["w4a16_g32"]


JUNK = st.sampled_from(
    [None, True, -1, 3.5, 10**30, "", "re:(", [], [1], {}, {"a": 1}, [[]], {"_type": "X", "_data": 3}]
)
BODIES = [json.loads((CONFIGS / e["file"]).read_text()) for e in INDEX]


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


@given(st.sampled_from(BODIES), st.data())
@settings(max_examples=150, deadline=None)
def test_any_configuration_is_recognized_or_refused_in_words(tmp_path_factory, body, data):
    body = json.loads(json.dumps(body))
    path = data.draw(st.sampled_from([p for p in places(body) if p]))
    inside = functools.reduce(lambda value, key: value[key], path[:-1], body)
    inside[path[-1]] = data.draw(JUNK)
    file = tmp_path_factory.getbasetemp() / "fuzz.json"
    file.write_text(json.dumps(body))
    outcome = recognize(file)
    assert not isinstance(outcome, Refused) or "failed on it" not in outcome.reason


def test_an_importer_that_fails_refuses_and_says_so(tmp_path):
    def broken(found, checkpoint):
        raise KeyError("bits")

    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mine"}}))
    assert "importer mine failed on it: KeyError" in recognize(tmp_path, (Importer("mine", broken),)).reason
