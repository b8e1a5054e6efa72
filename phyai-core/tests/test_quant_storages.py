"""How tools store layers, from the definition of each form; and every way in which a layer can be incomplete."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai.quant.checkpoint import Checkpoint
from phyai.quant.layers import stored_layers
from phyai.quant.realize import dequantize, realize
from phyai.quant.recognition import recognize

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file

NAME = "model.layers.0.mlp.down_proj"


def words(codes, bits, per_word=None):
    """Unsigned codes of each row, lowest bits first, in int32 words: densely, or ``per_word`` in each."""
    rows = []
    for row in codes.tolist():
        if per_word is None:
            stream = sum(c << (i * bits) for i, c in enumerate(row))
            count = -(-len(row) * bits // 32)
            packed = [(stream >> (32 * i)) & 0xFFFFFFFF for i in range(count)]
        else:
            chunks = [row[i : i + per_word] for i in range(0, len(row), per_word)]
            packed = [sum(c << (i * bits) for i, c in enumerate(chunk)) for chunk in chunks]
        rows.append([p - (1 << 32) if p >= 1 << 31 else p for p in packed])
    return torch.tensor(rows, dtype=torch.int32)


def load(folder, tensors, config, *, metadata=None):
    """The layer ``NAME`` of a checkpoint with these tensors (by suffix) and this quantization configuration."""
    named = {f"{NAME}.{suffix}": t.contiguous() for suffix, t in tensors.items()}
    save_file(named, folder / "model.safetensors", metadata=metadata)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    checkpoint = Checkpoint.open(folder)
    recognized = recognize(checkpoint)
    return realize(stored_layers(checkpoint, recognized, [NAME])[NAME], recognized)


def weight_of(folder, tensors, config, **more):
    return dequantize(load(folder, tensors, config, **more).weight)


def gptq_layer(bits, n, k, group, *, zeros=None, g_idx=None, offset=1, seed=0):
    """GPTQ's tensors and the weight that they stand for, by the format's definition."""
    random = torch.Generator().manual_seed(seed)
    top = 1 << bits
    groups = -(-k // group)
    codes = torch.randint(0, top, (k, n), generator=random)
    scales = (torch.rand(groups, n, generator=random) + 0.1).to(torch.float16)
    zeros = torch.full((groups, n), top // 2) if zeros is None else zeros
    index = torch.arange(k) // group if g_idx is None else g_idx
    tensors = {
        "qweight": words(codes.T, bits).T,
        "qzeros": words((zeros - offset) % top, bits),
        "scales": scales,
        "g_idx": index.to(torch.int32),
    }
    weight = (scales.float()[index] * (codes - zeros[index]).float()).T
    return tensors, weight


def gptq(bits=4, group=32, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True, **more}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("k", "group"), [(64, 32), (160, 128)])
def test_gptq_symmetric(tmp_path, bits, k, group):
    tensors, weight = gptq_layer(bits, 32, k, group)
    layer = load(tmp_path, tensors, gptq(bits, group))
    assert layer.weight.scheme.weight.symmetric
    assert torch.equal(dequantize(layer.weight), weight)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize(("form", "offset"), [("gptq", 1), ("gptq_v2", 0)])
def test_gptq_asymmetric(tmp_path, bits, form, offset):
    zeros = torch.randint(offset, 1 << bits, (2, 32))
    tensors, weight = gptq_layer(bits, 32, 64, 32, zeros=zeros, offset=offset)
    assert torch.equal(weight_of(tmp_path, tensors, gptq(bits, sym=False, checkpoint_format=form)), weight)


def test_gptq_zero_points_of_zero_borrow_from_their_neighbours(tmp_path):
    zeros = torch.tensor([[0, 5, 3, 0, 0, 7, 1, 9] * 4])
    tensors, weight = gptq_layer(4, 32, 32, 32, zeros=zeros, offset=0)
    tensors["qzeros"] = tensors["qzeros"] - 0x11111111  # as the tools write the older store: on the packed words
    assert torch.equal(weight_of(tmp_path, tensors, gptq(sym=False)), weight)


def test_gptq_with_activation_order(tmp_path):
    g_idx = torch.randperm(96, generator=torch.Generator().manual_seed(1)) // 32
    tensors, weight = gptq_layer(4, 16, 96, 32, g_idx=g_idx)
    layer = load(tmp_path, tensors, gptq(desc_act=True))
    assert layer.weight.scheme.weight.g_idx
    assert torch.equal(dequantize(layer.weight), weight)


def test_gptq_one_scale_per_output(tmp_path):
    tensors, weight = gptq_layer(4, 16, 64, 64)
    assert torch.equal(weight_of(tmp_path, tensors, gptq(group=-1)), weight)


def test_gptq_symmetric_by_its_configuration_only_keeps_its_zero_points(tmp_path):
    zeros = torch.full((2, 32), 8)
    zeros[1, 3] = 5
    tensors, weight = gptq_layer(4, 32, 64, 32, zeros=zeros)
    layer = load(tmp_path, tensors, gptq())
    assert layer.weight.scheme.weight.zero_point == "int"
    assert torch.equal(dequantize(layer.weight), weight)


def test_gptq_overrides_per_layer(tmp_path):
    tensors, weight = gptq_layer(8, 16, 64, 64)
    dynamic = {"-:.*lm_head": {}, r"+:.*down_proj": {"bits": 8, "group_size": 64}}
    assert torch.equal(weight_of(tmp_path, tensors, gptq(dynamic=dynamic)), weight)


def test_gptq_group_index_out_of_range_is_refused(tmp_path):
    tensors, _ = gptq_layer(4, 16, 64, 32)
    tensors["g_idx"][5] = 2
    with pytest.raises(CheckpointError, match=r"down_proj: g_idx names groups outside 0 to 1"):
        load(tmp_path, tensors, gptq())


def awq_layer(n=32, k=64, group=32):
    """AWQ's tensors and the weight that they stand for: outputs packed in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    codes, zeros = torch.randint(0, 16, (k, n)), torch.randint(0, 16, (k // group, n))
    scales = torch.rand(k // group, n).to(torch.float16)
    order = [8 * i + j for i in range(n // 8) for j in (0, 2, 4, 6, 1, 3, 5, 7)]
    tensors = {"qweight": words(codes[:, order], 4), "qzeros": words(zeros[:, order], 4), "scales": scales}
    index = torch.arange(k) // group
    return tensors, ((codes - zeros[index]).float() * scales.float()[index]).T


def test_awq_gemm(tmp_path):
    tensors, weight = awq_layer()
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "GEMM"}
    assert torch.equal(weight_of(tmp_path, tensors, config), weight)


def test_awq_in_another_form_is_refused(tmp_path):
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemv"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    assert "gemv" in str(recognize(tmp_path))


def packed_config(bits=4, strategy="group", group=32, *, version="0.20.0", **more):
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "symmetric": True, **more}
    if strategy == "group":
        weights["group_size"] = group
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "version": version,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }  # fmt: skip


def packed_layer(bits, n, k, groups, *, per_word=None, zero_points=False):
    half = 1 << (bits - 1)
    codes = torch.randint(-half, half, (n, k))
    scale = torch.rand(n, groups).to(torch.bfloat16)
    zeros = torch.randint(-half, half, (n, groups)) if zero_points else torch.zeros(n, groups, dtype=torch.int64)
    tensors = {
        "weight_packed": words(codes + half, bits, per_word),
        "weight_scale": scale,
        "weight_shape": torch.tensor([n, k]),
    }
    if zero_points:
        tensors["weight_zero_point"] = words((zeros + half).T, bits, per_word).T
    index = torch.arange(k) // -(-k // groups)
    return tensors, (codes - zeros[:, index]).float() * scale.float()[:, index]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("zero_points", [False, True])
def test_packed_codes_of_every_width(tmp_path, bits, zero_points):
    tensors, weight = packed_layer(bits, 40, 96, 3, zero_points=zero_points)
    config = packed_config(bits, symmetric=not zero_points)
    assert torch.equal(weight_of(tmp_path, tensors, config), weight)


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize("k", [96, 120])
def test_older_versions_do_not_split_codes_between_words(tmp_path, bits, k):
    tensors, weight = packed_layer(bits, 40, k, 1, per_word=32 // bits, zero_points=True)
    config = packed_config(bits, "channel", version="0.13.0", symmetric=False)
    assert torch.equal(weight_of(tmp_path, tensors, config), weight)


def test_a_width_that_two_versions_share_needs_the_version(tmp_path):
    tensors, _ = packed_layer(3, 40, 120, 1)
    with pytest.raises(CheckpointError, match="no version"):
        load(tmp_path, tensors, packed_config(3, "channel", version=None))


def test_group_index_of_older_versions(tmp_path):
    tensors, _ = packed_layer(4, 16, 96, 3)
    g_idx = torch.randperm(96) // 32
    tensors["weight_g_idx"] = g_idx.to(torch.int32)
    layer = load(tmp_path, tensors, packed_config(actorder="group"))
    plain = dequantize(layer.weight)
    assert layer.weight.scheme.facts()["quant.g_idx"] is True
    unscaled = plain / tensors["weight_scale"].float()[:, g_idx]
    assert torch.equal(unscaled.round(), (plain / tensors["weight_scale"].float()[:, g_idx]).round())
    assert torch.allclose(unscaled, unscaled.round(), atol=1e-3)


FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_scale"])
def test_block_scales_cover_short_edges(tmp_path, suffix):
    codes = torch.randn(208, 160).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 2)
    weight = codes.float() * scale.repeat_interleave(128, 0)[:208].repeat_interleave(128, 1)[:, :160]
    assert torch.equal(weight_of(tmp_path, {"weight": codes, suffix: scale}, FP8_BLOCK), weight)


def test_block_scales_may_be_powers_of_two(tmp_path):
    codes = torch.randn(128, 256).to(torch.float8_e4m3fn)
    scale = torch.tensor([[0.25, 2.0]])
    stored = {"weight": codes, "weight_scale_inv": scale.to(torch.float8_e8m0fnu)}
    weight = codes.float() * scale.repeat_interleave(128, 1)
    assert torch.equal(weight_of(tmp_path, stored, {**FP8_BLOCK, "scale_fmt": "ue8m0"}), weight)


def test_one_scale_per_output_is_told_by_its_shape(tmp_path):
    codes, scale = torch.randn(48, 64).to(torch.float8_e4m3fn), torch.rand(48, 1)
    layer = load(tmp_path, {"weight": codes, "weight_scale": scale}, {"quant_method": "fp8"})
    assert (layer.weight.scheme.weight.granularity, layer.weight.scheme.input.granularity) == ("channel", "token")
    assert torch.equal(dequantize(layer.weight), codes.float() * scale)


def test_modelopt_block_scales_have_four_dimensions(tmp_path):
    codes, scale = torch.randn(256, 128).to(torch.float8_e4m3fn), torch.rand(2, 1, 1, 1)
    config = {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}
    weight = codes.float() * scale.reshape(2, 1).repeat_interleave(128, 0)
    assert torch.equal(weight_of(tmp_path, {"weight": codes, "weight_scale": scale}, config), weight)


def test_modelopt_int4_pairs_output_rows_and_takes_its_group_size_from_the_scales(tmp_path):
    codes, scale = torch.randint(-8, 8, (32, 128)), torch.rand(32, 2)
    packed = ((codes[0::2] & 15) | ((codes[1::2] & 15) << 4)).to(torch.uint8)
    config = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    pre = torch.rand(128).to(torch.bfloat16)
    layer = load(tmp_path, {"weight": packed, "weight_scale": scale, "pre_quant_scale": pre}, config)
    assert layer.weight.scheme.weight.group_size == 64
    assert torch.equal(layer.weight.pre_scale, pre)
    assert torch.equal(dequantize(layer.weight), codes.float() * scale.repeat_interleave(64, 1))


def test_modelopt_w4a8_does_not_multiply_the_product_scale(tmp_path):
    codes, scale = torch.randint(-8, 8, (32, 128)), torch.rand(32, 1)
    packed = ((codes[0::2] & 15) | ((codes[1::2] & 15) << 4)).to(torch.uint8)
    tensors = {
        "weight": packed,
        "weight_scale": scale,
        "weight_scale_2": torch.tensor(0.01),
        "input_scale": torch.tensor(0.02),
    }
    config = {"quantization": {"quant_algo": "W4A8_AWQ", "group_size": 128}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(config))
    config = {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}
    assert torch.equal(weight_of(tmp_path, tensors, config), codes.float() * scale)


def test_modelopt_second_scales_multiply(tmp_path):
    from phyai.quant.elements import element

    table = torch.tensor([*element("fp4_e2m1").values, *(-v for v in element("fp4_e2m1").values)])
    codes = torch.randint(0, 16, (16, 64))
    scale = (torch.rand(16, 4) + 0.5).to(torch.float8_e4m3fn)
    tensors = {
        "weight": (codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8), "weight_scale": scale,
        "weight_scale_2": torch.tensor(0.037), "input_scale": torch.tensor(0.01),
    }  # fmt: skip
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    weight = table[codes] * (scale.float() * torch.tensor(0.037)).repeat_interleave(16, 1)
    assert torch.equal(weight_of(tmp_path, tensors, config), weight)


def torchao_layer(folder, tensors, data, kind="Int8Tensor"):
    entry = {"_type": kind, "_data": data, "_tensor_data_names": []}
    config = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Config", "_data": {}}}}
    stored = {f"_weight_{name}": t for name, t in tensors.items()}
    return load(folder, stored, config, metadata={f"{NAME}.weight": json.dumps(entry)})


def test_torchao_integers_with_zero_points(tmp_path):
    codes, scale = torch.randint(-4, 4, (16, 64)).to(torch.int8), torch.rand(16, 2)
    zeros = torch.randint(-3, 3, (16, 2)).to(torch.int8)
    data = {"block_size": [1, 32], "target_dtype": {"_type": "torch.dtype", "_data": "int3"}}
    tensors = {"qdata": codes, "scale": scale, "zero_point": zeros}
    layer = torchao_layer(tmp_path, tensors, data, "IntxUnpackedToInt8Tensor")
    expected = (codes - zeros.repeat_interleave(32, 1)).float() * scale.repeat_interleave(32, 1)
    assert layer.weight.scheme.name == "w3a16_g32_zp"
    assert torch.equal(dequantize(layer.weight), expected)


def test_torchao_blocked_scales(tmp_path):
    codes = torch.randn(160, 192).to(torch.float8_e4m3fn)
    exponents = torch.randint(120, 134, (160, 6), dtype=torch.uint8)
    padded = torch.zeros(256, 8, dtype=torch.uint8)
    padded[:160, :6] = exponents
    blocked = padded.reshape(2, 128, 2, 4).permute(0, 2, 1, 3).reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1, 32, 16)
    data = {
        "elem_dtype": {"_type": "torch.dtype", "_data": "float8_e4m3fn"},
        "block_size": 32,
        "is_swizzled_scales": True,
    }
    tensors = {"qdata": codes, "scale": blocked.reshape(64, 32).view(torch.float8_e8m0fnu)}
    layer = torchao_layer(tmp_path, tensors, data, "MXTensor")
    scale = torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
    assert torch.equal(dequantize(layer.weight), codes.float() * scale)


# Whatever one tensor is missing, left over, or of another shape or dtype, the error names the layer and the tensor.

FORMS = {
    "gptq": (lambda: gptq_layer(4, 32, 64, 32)[0], gptq()),
    "awq": (lambda: awq_layer()[0], {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}),
    "packed": (lambda: packed_layer(4, 40, 96, 3, zero_points=True)[0], packed_config(symmetric=False)),
    "fp8 block": (
        lambda: {"weight": torch.randn(256, 256).to(torch.float8_e4m3fn), "weight_scale_inv": torch.rand(2, 2)},
        FP8_BLOCK,
    ),
    "fp8 static": (
        lambda: {
            "weight": torch.randn(64, 64).to(torch.float8_e4m3fn),
            "weight_scale": torch.rand(1),
            "input_scale": torch.rand(1),
        },
        {"quant_method": "fp8", "activation_scheme": "static"},
    ),
    "modelopt nvfp4": (
        lambda: {
            "weight": torch.zeros(32, 32, dtype=torch.uint8),
            "weight_scale": torch.ones(32, 4).to(torch.float8_e4m3fn),
            "weight_scale_2": torch.tensor(1.0),
            "input_scale": torch.tensor(1.0),
        },
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
    ),
    "modelopt fp8": (
        lambda: {
            "weight": torch.randn(64, 64).to(torch.float8_e4m3fn),
            "weight_scale": torch.tensor(0.1),
            "input_scale": torch.tensor(0.1),
        },
        {"quant_method": "modelopt", "quant_algo": "FP8"},
    ),
}
TENSORS = [(form, suffix) for form, (make, _) in FORMS.items() for suffix in make()]


@pytest.mark.parametrize("form", FORMS)
def test_complete_layers_load(tmp_path, form):
    make, config = FORMS[form]
    load(tmp_path, make(), config)


@pytest.mark.parametrize(("form", "suffix"), [p for p in TENSORS if p[1] != "g_idx"])
def test_a_missing_tensor_is_an_error(tmp_path, form, suffix):
    make, config = FORMS[form]
    tensors = make()
    del tensors[suffix]
    with pytest.raises(CheckpointError, match=rf"down_proj: .*{suffix}.* is missing"):
        load(tmp_path, tensors, config)


@pytest.mark.parametrize(("form", "suffix"), TENSORS)
def test_a_misshapen_tensor_is_an_error(tmp_path, form, suffix):
    make, config = FORMS[form]
    tensors = make()
    tensors[suffix] = torch.stack([tensors[suffix], tensors[suffix]])
    with pytest.raises(CheckpointError, match="down_proj: "):
        load(tmp_path, tensors, config)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", ["weight_scale_3", "output_scale", "pre_scale", "lora_A"])
def test_a_surplus_tensor_is_an_error(tmp_path, form, suffix):
    make, config = FORMS[form]
    with pytest.raises(CheckpointError, match=f"down_proj: {suffix} should not be there"):
        load(tmp_path, {**make(), suffix: torch.ones(1)}, config)


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_that_the_configuration_leaves_out_must_not_be_quantized(tmp_path, form):
    make, config = FORMS[form]
    skip = {
        "gptq": {"dynamic": {f"-:.*{NAME}": {}}}, "awq": {"modules_to_not_convert": [NAME]},
        "compressed-tensors": {"ignore": [NAME]}, "fp8": {"ignored_layers": [NAME]},
        "modelopt": {"exclude_modules": [NAME]},
    }[config["quant_method"]]  # fmt: skip
    with pytest.raises(CheckpointError, match=r"down_proj: .* should not be there"):
        load(tmp_path, make(), {**config, **skip})


@pytest.mark.parametrize(("value", "what"), [("nan", "holds NaN"), ("inf", "holds NaN or inf"), ("0", "is 0.0, which")])
def test_scales_that_are_no_numbers_are_refused(tmp_path, value, what):
    make, config = FORMS["modelopt nvfp4"]
    with pytest.raises(CheckpointError, match=f"weight_scale_2 {what}"):
        load(tmp_path, {**make(), "weight_scale_2": torch.tensor(float(value))}, config)


def test_quantized_tensors_without_a_configuration_are_refused(tmp_path):
    make, _ = FORMS["fp8 block"]
    save_file({f"{NAME}.{k}": v for k, v in make().items()}, tmp_path / "model.safetensors")
    assert "look quantized" in str(recognize(tmp_path))


def test_expert_tensors_are_a_problem_of_their_own(tmp_path):
    make, config = FORMS["fp8 block"]
    experts = {"model.layers.0.experts.gate_up_proj": torch.randn(2, 128, 128).to(torch.float8_e4m3fn)}
    save_file({**{f"{NAME}.{k}": v for k, v in make().items()}, **experts}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    checkpoint = Checkpoint.open(tmp_path)
    layers = stored_layers(checkpoint, recognize(checkpoint))
    assert layers[NAME].problem is None
    assert "experts" in layers["model.layers.0.experts"].problem


@given(bits=st.integers(1, 8), rows=st.integers(1, 3), count=st.integers(1, 70), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_packing_is_undone_by_unpacking(bits, rows, count, seed):
    from phyai.quant.realize.bits import pack_bits, unpack_bits, unpack_words

    codes = torch.randint(0, 1 << bits, (rows, count), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.shape == (rows, -(-count * bits // 8))
    assert torch.equal(unpack_bits(packed, bits, count), codes)
    assert torch.equal(unpack_words(words(codes, bits), bits, count), codes)
