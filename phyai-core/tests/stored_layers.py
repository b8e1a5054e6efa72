"""Layers as tools store them, made from the definition of each form, and read back."""

import json

import pytest
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


def awq_layer(n=32, k=64, group=32):
    """AWQ's tensors and the weight that they stand for: outputs packed in the order 0, 2, 4, 6, 1, 3, 5, 7."""
    codes, zeros = torch.randint(0, 16, (k, n)), torch.randint(0, 16, (k // group, n))
    scales = torch.rand(k // group, n).to(torch.float16)
    order = [8 * i + j for i in range(n // 8) for j in (0, 2, 4, 6, 1, 3, 5, 7)]
    tensors = {"qweight": words(codes[:, order], 4), "qzeros": words(zeros[:, order], 4), "scales": scales}
    index = torch.arange(k) // group
    return tensors, ((codes - zeros[index]).float() * scales.float()[index]).T


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


FP8_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
