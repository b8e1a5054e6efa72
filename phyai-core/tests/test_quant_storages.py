"""How tools store layers: what comes of each form, by its definition."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai.quant.realize import dequantize
from phyai.quant.recognition import recognize
from stored_layers import (
    FP8_BLOCK,
    NAME,
    awq_layer,
    gptq,
    gptq_layer,
    load,
    packed_config,
    packed_layer,
    weight_of,
    words,
)

torch = pytest.importorskip("torch")


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


def test_awq_gemm(tmp_path):
    tensors, weight = awq_layer()
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "GEMM"}
    assert torch.equal(weight_of(tmp_path, tensors, config), weight)


def test_awq_in_another_form_is_refused(tmp_path):
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemv"}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    assert "gemv" in str(recognize(tmp_path))


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


@given(bits=st.integers(1, 8), rows=st.integers(1, 3), count=st.integers(1, 70), seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_packing_is_undone_by_unpacking(bits, rows, count, seed):
    from phyai.quant.realize.bits import pack_bits, unpack_bits, unpack_words

    codes = torch.randint(0, 1 << bits, (rows, count), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    packed = pack_bits(codes, bits)
    assert packed.shape == (rows, -(-count * bits // 8))
    assert torch.equal(unpack_bits(packed, bits, count), codes)
    assert torch.equal(unpack_words(words(codes, bits), bits, count), codes)
