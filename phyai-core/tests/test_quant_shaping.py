"""Cutting weights for tensor parallelism and stacking the shards of fused layers: always exact."""

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phyai.errors import CheckpointError
from phyai.quant import QuantScheme, TensorQuant
from phyai.quant.realize import dequantize, fuse, quantize_weight, shard
from phyai.quant.scheme import MXFP4, NVFP4

torch = pytest.importorskip("torch")

QUANTS = [
    TensorQuant("int8", "tensor"),
    TensorQuant("int8", "channel", zero_point="int"),
    TensorQuant("int3", "group", group_size=16),
    TensorQuant("uint4", "group", group_size=32, zero_point="int"),
    TensorQuant("fp8_e4m3", "block", block_shape=(16, 32)),
    TensorQuant("fp8_e4m3", "tensor"),
    MXFP4,
    NVFP4,
]


def quantized(quant, n=64, k=128, seed=0):
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(seed))
    return quantize_weight(w, QuantScheme(quant))


@given(st.sampled_from(QUANTS), st.sampled_from([0, 1]), st.sampled_from([1, 2, 4]))
@settings(max_examples=48, deadline=None)
def test_parts_are_the_parts_of_the_whole(quant, dim, world):
    whole = quantized(quant)
    parts = [shard(whole, dim, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat([dequantize(p) for p in parts], dim), dequantize(whole))
    assert all(p.scale.shape == p.scheme.weight.scale_shape(*p.shape) for p in parts)


def test_a_pre_scale_is_cut_with_the_inputs():
    whole = attrs.evolve(quantized(QUANTS[0]), pre_scale=torch.arange(128.0))
    assert torch.equal(shard(whole, 1, 1, 4).pre_scale, torch.arange(32.0, 64.0))
    assert torch.equal(shard(whole, 0, 1, 4).pre_scale, whole.pre_scale)


@pytest.mark.parametrize(
    ("quant", "dim", "world", "words"),
    [
        (QUANTS[0], 0, 3, "equal parts"),
        (TensorQuant("int4", "group", group_size=128), 1, 2, "split a group of 128"),
        (TensorQuant("fp8_e4m3", "block", block_shape=(128, 128)), 0, 2, "split a block of 128"),
    ],
)
def test_cuts_that_are_not_exact_are_refused(quant, dim, world, words):
    with pytest.raises(CheckpointError, match=words):
        shard(quantized(quant, 128, 128), dim, 0, world)


def test_inputs_grouped_by_an_index_cannot_be_cut():
    quant = TensorQuant("int4", "group", group_size=32)
    whole = quantized(quant)
    index = attrs.evolve(whole.scheme, weight=attrs.evolve(quant, g_idx=True))
    with pytest.raises(CheckpointError, match="g_idx"):
        shard(attrs.evolve(whole, scheme=index, g_idx=torch.zeros(128, dtype=torch.int32)), 1, 0, 2)


@given(st.lists(st.sampled_from(QUANTS), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_fused_parts_hold_every_shards_numbers_in_order(quants):
    shards = {f"s{i}": quantized(q, 32, 64, seed=i) for i, q in enumerate(quants)}
    parts = fuse(shards)
    assert [n for p in parts for n in p.names] == list(shards)
    stacked = torch.cat([dequantize(p.weight) for p in parts])
    assert torch.equal(stacked, torch.cat([dequantize(w) for w in shards.values()]))


def test_unequal_scales_per_tensor_become_scales_per_channel():
    shards = {n: quantized(TensorQuant("fp8_e4m3", "tensor"), 32, 64, seed=i) for i, n in enumerate("qkv")}
    (part,) = fuse(shards)
    assert part.weight.scheme.weight.granularity == "channel"
    assert part.weight.scale.shape == (96, 1)
    assert "per channel" in part.notes[0]


def test_equal_scales_per_tensor_stay():
    one = quantized(TensorQuant("int8", "tensor"), 32, 64)
    (part,) = fuse({"a": one, "b": one})
    assert part.weight.scheme.weight.granularity == "tensor"
    assert part.weight.shape == (64, 64)


def test_a_static_input_scale_that_differs_keeps_shards_apart():
    static = TensorQuant("fp8_e4m3", "tensor")
    base = quantized(TensorQuant("fp8_e4m3", "tensor"), 32, 64)
    base = attrs.evolve(base, scheme=attrs.evolve(base.scheme, input=static), input_scale=torch.tensor(0.5))
    other = attrs.evolve(base, input_scale=torch.tensor(0.25))
    parts = fuse({"q": base, "k": base, "v": other})
    assert [p.names for p in parts] == [("q", "k"), ("v",)]
    assert "k and v stay separate GEMMs: their static input scales differ" in parts[0].notes


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (quantized(TensorQuant("int8", "channel"), 32, 64), "schemes differ"),
        (torch.ones(32, 64), "one is quantized"),
        (quantized(NVFP4, 32, 64, seed=9), "second scales differ"),
    ],
)
def test_shards_that_differ_stay_apart_and_say_why(other, words):
    first = quantized(NVFP4, 32, 64)
    parts = fuse({"gate": first, "up": other})
    assert len(parts) == 2
    assert words in parts[0].notes[0]


def test_plain_shards_are_stacked():
    (part,) = fuse({"a": torch.ones(2, 3), "b": torch.zeros(1, 3)})
    assert part.weight.shape == (3, 3)
