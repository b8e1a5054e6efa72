"""Make the small π0.5 checkpoint of the demonstration, in lerobot's layout::

    python -m phyai_models.demo.make_checkpoint DIR

It was not trained. Its towers are random; its action head is put together so that the flow does what a trained
one does: the velocity is ``(x - a) / t``, where ``a`` is what the expert reads from images, instruction and state.
So the noise vanishes, and the chunk is a smooth function of what the robot sees. Random numbers come from NumPy's
legacy generator, whose stream is guaranteed never to change.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from phyai_models.pi.config import GemmaConfig, SiglipConfig
from phyai_models.pi.flow import embed_time

SEED = 2
VOCABULARY = 512
CHUNK, ACTION_DIM, MAX_DIM, STATE_DIM = 50, 7, 32, 8
CAMERAS = ("base", "wrist")
LANGUAGE = GemmaConfig(width=64, depth=3, mlp_dim=128, num_heads=4, num_kv_heads=1, head_dim=16)
EXPERT = GemmaConfig(width=64, depth=3, mlp_dim=128, num_heads=4, num_kv_heads=1, head_dim=16)
VISION = SiglipConfig(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)

#: The sample lies in the first MAX_DIM channels of the expert; the others hold a constant, so that
#: normalization divides by nearly the same number whatever the sample is.
CONSTANT = 16.0

CORPUS = (
    "pick up the coffee cup and put it on the saucer", "move the spoon next to the cup", "wave to the astronaut",
    "point at the rocket behind the astronaut", "pet the cat gently", "hold the cat's toy above its head",
    "open the drawer, place the block inside, and close the drawer", "push the red button", "pour water into the bowl",
    "stack the green block on the blue block", "wipe the table with the sponge", "hand me the screwdriver please",
    "Task: , State: ;\nAction: ", *(f" {n}" for n in range(-1, 256)),
)  # fmt: skip


class Maker:
    """Draws tensors and collects them under lerobot's names."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)
        self.tensors: dict[str, torch.Tensor] = {}

    def normal(self, *shape: int, std: float) -> torch.Tensor:
        return torch.from_numpy((self.random.standard_normal(shape) * std).astype(np.float32))

    def put(self, name: str, value: torch.Tensor) -> None:
        self.tensors[f"model.{name}"] = value.contiguous()

    def linear(self, name: str, out: int, inputs: int, *, bias: bool = False, gain: float = 1.0) -> None:
        self.put(f"{name}.weight", self.normal(out, inputs, std=gain * inputs**-0.5))
        if bias:
            self.put(f"{name}.bias", self.normal(out, std=0.02))


def vision(maker: Maker, prefix: str) -> None:
    width = VISION.hidden_size
    patch = 3 * VISION.patch_size**2
    maker.put(
        f"{prefix}.embeddings.patch_embedding.weight",
        maker.normal(width, 3, VISION.patch_size, VISION.patch_size, std=4 * patch**-0.5),
    )
    maker.put(f"{prefix}.embeddings.patch_embedding.bias", maker.normal(width, std=0.1))
    maker.put(f"{prefix}.embeddings.position_embedding.weight", maker.normal(VISION.patches, width, std=0.3))
    for i in range(VISION.num_hidden_layers):
        layer = f"{prefix}.encoder.layers.{i}"
        for norm in ("layer_norm1", "layer_norm2"):
            layer_norm(maker, f"{layer}.{norm}", width)
        for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
            maker.linear(f"{layer}.self_attn.{projection}", width, width, bias=True)
        maker.linear(f"{layer}.mlp.fc1", VISION.intermediate_size, width, bias=True)
        maker.linear(f"{layer}.mlp.fc2", width, VISION.intermediate_size, bias=True)
    layer_norm(maker, f"{prefix}.post_layernorm", width)


def layer_norm(maker: Maker, name: str, width: int) -> None:
    maker.put(f"{name}.weight", 1 + maker.normal(width, std=0.1))
    maker.put(f"{name}.bias", maker.normal(width, std=0.1))


def attention(maker: Maker, name: str, config: GemmaConfig, *, output_gain: float) -> None:
    """Queries and keys live in rotary frequencies that turn once in about a chunk, so that the chunk is smooth."""
    slow = torch.tensor([0.05, 0.2, 1.5, 1.5, 1.0, 0.5, 0.5, 0.5]).repeat(2)
    for projection, heads in (("q_proj", config.num_heads), ("k_proj", config.num_kv_heads)):
        weight = maker.normal(heads, config.head_dim, config.width, std=1.6 * config.width**-0.5) * slow[:, None]
        maker.put(f"{name}.{projection}.weight", weight.reshape(-1, config.width))
    maker.linear(f"{name}.v_proj", config.num_kv_heads * config.head_dim, config.width)
    maker.linear(f"{name}.o_proj", config.width, config.num_heads * config.head_dim, gain=output_gain)


def mlp(maker: Maker, name: str, config: GemmaConfig, *, output_gain: float) -> None:
    maker.linear(f"{name}.gate_proj", config.mlp_dim, config.width)
    maker.linear(f"{name}.up_proj", config.mlp_dim, config.width)
    maker.linear(f"{name}.down_proj", config.width, config.mlp_dim, gain=output_gain)


def language(maker: Maker, prefix: str) -> None:
    table = maker.normal(VOCABULARY, LANGUAGE.width, std=LANGUAGE.width**-0.5)
    maker.put(f"{prefix}.embed_tokens.weight", table)
    maker.put("paligemma_with_expert.paligemma.lm_head.weight", table.clone())
    for i in range(LANGUAGE.depth):
        layer = f"{prefix}.layers.{i}"
        maker.put(f"{layer}.input_layernorm.weight", maker.normal(LANGUAGE.width, std=0.1))
        attention(maker, f"{layer}.self_attn", LANGUAGE, output_gain=0.5)
        maker.put(f"{layer}.post_attention_layernorm.weight", maker.normal(LANGUAGE.width, std=0.1))
        mlp(maker, f"{layer}.mlp", LANGUAGE, output_gain=0.5)
    maker.put(f"{prefix}.norm.weight", maker.normal(LANGUAGE.width, std=0.1))


def expert(maker: Maker, prefix: str) -> None:
    """Branches write to the sample's channels only; scale, shift and gate hardly change with time, except that
    the last normalization scales by ``1 / t``."""
    width = EXPERT.width
    for i in range(EXPERT.depth):
        layer = f"{prefix}.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            maker.put(f"{layer}.{norm}.dense.weight", maker.normal(3 * width, width, std=0.01))
            maker.put(f"{layer}.{norm}.dense.bias", torch.cat([torch.zeros(2 * width), torch.ones(width)]))
        attention(maker, f"{layer}.self_attn", EXPERT, output_gain=1.1)
        mlp(maker, f"{layer}.mlp", EXPERT, output_gain=0.15)
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            maker.tensors[f"model.{layer}.{name}.weight"][MAX_DIM:] = 0
    for name, inputs in (("time_mlp_in", width), ("time_mlp_out", width)):
        maker.linear(name, width, inputs, bias=True, gain=1.5)
    weight, bias = inverse_time(maker)
    dense, offset = torch.zeros(3 * width, width), torch.zeros(3 * width)
    dense[:MAX_DIM], offset[:MAX_DIM] = weight, bias
    maker.put(f"{prefix}.norm.dense.weight", dense)
    maker.put(f"{prefix}.norm.dense.bias", offset)
    maker.put("paligemma_with_expert.gemma_expert.lm_head.weight", maker.normal(VOCABULARY, width, std=0.02))


def inverse_time(maker: Maker) -> tuple[torch.Tensor, torch.Tensor]:
    """A linear function of the embedded time that is as near to ``1 / t - 1`` as least squares bring it."""
    time = torch.linspace(0.05, 1.0, 400)
    embedded = embed_time(time, EXPERT.width, 4e-3, 4.0).double()
    for name in ("time_mlp_in", "time_mlp_out"):
        weight, bias = (maker.tensors[f"model.{name}.{part}"].double() for part in ("weight", "bias"))
        embedded = torch.nn.functional.silu(embedded @ weight.T + bias)
    features = torch.cat([embedded, torch.ones(len(time), 1, dtype=torch.float64)], dim=1)
    ridge = 1e-6 * torch.eye(features.shape[1], dtype=torch.float64)
    relative = features * time.double()[:, None]  # errors count in proportion to the value
    target = (1 - time.double())[:, None]
    solution = torch.linalg.solve(relative.T @ relative + ridge, relative.T @ target).squeeze(1).float()
    return solution[:-1], solution[-1]


def heads(maker: Maker) -> None:
    width = EXPERT.width
    identity = torch.eye(width, MAX_DIM)
    maker.put("action_in_proj.weight", identity)
    maker.put("action_in_proj.bias", torch.cat([torch.zeros(MAX_DIM), torch.full((width - MAX_DIM,), CONSTANT)]))
    rms = CONSTANT * ((width - MAX_DIM) / width) ** 0.5
    maker.put("action_out_proj.weight", rms * identity.T)
    maker.put("action_out_proj.bias", torch.zeros(MAX_DIM))


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<eos>", "<bos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))]
    )
    return tokenizer


def config() -> dict[str, Any]:
    """The parts of lerobot's ``config.json`` that say something about inference."""
    image = {"type": "VISUAL", "shape": [3, VISION.image_size, VISION.image_size]}
    return {
        "type": "pi05",
        "n_obs_steps": 1,
        "input_features": {
            **{f"observation.images.{camera}": image for camera in CAMERAS},
            "observation.state": {"type": "STATE", "shape": [STATE_DIM]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [ACTION_DIM]}},
        "paligemma_variant": "gemma_2b",
        "action_expert_variant": "gemma_300m",
        "dtype": "float32",
        "chunk_size": CHUNK,
        "n_action_steps": CHUNK,
        "max_state_dim": MAX_DIM,
        "max_action_dim": MAX_DIM,
        "num_inference_steps": 10,
        "min_period": 0.004,
        "max_period": 4.0,
        "image_resolution": [VISION.image_size, VISION.image_size],
        "empty_cameras": 0,
        "tokenizer_max_length": 200,
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "QUANTILES"},
    }


def arch() -> dict[str, Any]:
    def gemma(tower: GemmaConfig) -> dict[str, int]:
        return {n: getattr(tower, n) for n in ("width", "depth", "mlp_dim", "num_heads", "num_kv_heads", "head_dim")}

    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size", "patch_size")
    return {
        "family": "pi05",
        "language_model": gemma(LANGUAGE),
        "expert": gemma(EXPERT),
        "vision": {name: getattr(VISION, name) for name in names},
        "vocab_size": VOCABULARY,
    }


def processors_of(features: dict[str, Any]) -> dict[str, Any]:
    """The two processor files, and the statistics that they name."""
    modes = features["normalization_mapping"]
    inputs, outputs = features["input_features"], features["output_features"]
    stats = {
        "observation.state.q01": torch.full((STATE_DIM,), -1.5),
        "observation.state.q99": torch.full((STATE_DIM,), 1.5),
        "action.q01": torch.tensor([-0.3, -0.3, -0.3, -0.6, -0.6, -0.6, 0.0]),
        "action.q99": torch.tensor([0.3, 0.3, 0.3, 0.6, 0.6, 0.6, 1.0]),
    }
    names = {
        "pre": "policy_preprocessor_step_3_normalizer_processor.safetensors",
        "post": "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
    }
    normalizer = {"eps": 1e-8, "features": {**inputs, **outputs}, "norm_map": modes}
    tokenizer = {
        "max_length": 200,
        "task_key": "task",
        "padding_side": "right",
        "padding": "max_length",
        "truncation": True,
    }
    pre = [
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {"registry_name": "to_batch_processor", "config": {}},
        {
            "registry_name": "relative_actions_processor",
            "config": {"enabled": False, "exclude_joints": [], "action_names": None},
        },
        {"registry_name": "normalizer_processor", "config": normalizer, "state_file": names["pre"]},
        {"registry_name": "pi05_prepare_state_tokenizer_processor_step", "config": {}},
        {"registry_name": "tokenizer_processor", "config": tokenizer},
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
    ]
    post = [
        {
            "registry_name": "unnormalizer_processor",
            "config": {**normalizer, "features": outputs},
            "state_file": names["post"],
        },
        {"registry_name": "absolute_actions_processor", "config": {"enabled": False}},
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
    ]
    return {
        "policy_preprocessor.json": {"name": "policy_preprocessor", "steps": pre},
        "policy_postprocessor.json": {"name": "policy_postprocessor", "steps": post},
        **dict.fromkeys(names.values(), stats),
    }


def make_checkpoint(directory: Path) -> None:
    """Write the checkpoint to ``directory``, which is made when it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    maker = Maker(SEED)
    paligemma = "paligemma_with_expert.paligemma.model"
    vision(maker, f"{paligemma}.vision_tower.vision_model")
    maker.linear(f"{paligemma}.multi_modal_projector.linear", LANGUAGE.width, VISION.hidden_size, bias=True)
    language(maker, f"{paligemma}.language_model")
    expert(maker, "paligemma_with_expert.gemma_expert.model")
    heads(maker)
    save_file(maker.tensors, directory / "model.safetensors")
    make_tokenizer().save(str(directory / "tokenizer.json"))
    files = {"config.json": config(), "arch.json": arch(), **processors_of(config())}
    for name, content in files.items():
        if name.endswith(".json"):
            (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        else:
            save_file(content, directory / name)


if __name__ == "__main__":
    make_checkpoint(Path(sys.argv[1]))
