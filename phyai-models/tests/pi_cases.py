"""Handed cases, random checkpoints, and engines on them, for the tests of π models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
from phyai_models.layers import Scope
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import LerobotBatch
from phyai_models.pi.inputs import (
    Inputs,
    blank_images,
    lerobot_cameras,
    lerobot_images,
    lerobot_inputs,
    small_on_host,
)
from phyai_models.pi.loading import model_class
from phyai_models.pi.model import Savings
from phyai_models.pi.precision import Precision
from phyai_models.pi0 import PI0Args
from phyai_models.pi05 import PI05Args
from phyai_models.processors.checks import Checks
from safetensors.torch import load_file, save_file

DATA = Path(__file__).parent / "data"
CASES = ("pi05_a", "pi05_c", "pi0_a")
POLICIES = Path(__file__).parents[2] / "policies"
#: The handed cases under every policy that ships for their model, but for those whose kernels run on GPUs alone and at
#: larger sizes.
UNDER_POLICIES = [
    (name, policy)
    for name in CASES
    for policy in sorted(path.name for path in (POLICIES / name.partition("_")[0]).glob("*.yaml"))
    if "humming" not in policy
]
ARGS = {"pi05": PI05Args, "pi0": PI0Args}
REFERENCE = "schema: phyai.kernel/v1\nrules:\n- {id: plain, match: {}, restrict_to: 'reference.*'}\n"

torch.set_num_threads(1)


def case(name: str) -> tuple[Path, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A handed case: its directory, inputs and expected stages."""
    directory = DATA / name
    return directory, load_file(directory / "inputs.safetensors"), load_file(directory / "expected.safetensors")


def family_of(directory: Path) -> str:
    return json.loads((directory / "config.json").read_text())["type"]


def engine(
    directory: Path, *, catalog: Any = None, policy: Any = None, dtype: Any = None, tags: Any = (),
    runtime: RuntimeConfig | None = None, device: str = "cpu", **arguments: Any,
) -> Engine:  # fmt: skip
    family = family_of(directory)
    config = EngineConfig(DeviceConfig(device, dtype), tags=tags, runtime=runtime or RuntimeConfig())
    return Engine(EngineArgs(family, ARGS[family](directory, **arguments), config), policy=policy, catalog=catalog)


def assert_moves_alike(policy: Path, got: torch.Tensor, inputs: dict[str, torch.Tensor], want: torch.Tensor) -> None:
    """That actions under a shipped policy, quantizing or not, add to the noise what lerobot's model adds."""
    noise = inputs["noise"][..., : want.shape[-1]]
    exact = "quantization:" not in policy.read_text()
    assert cosine(got - noise, want - noise) > (0.9995 if exact else 0.998)


def run(
    directory: Path, tensors: dict[str, torch.Tensor], *, steps: int | None = None, **how: Any
) -> dict[str, torch.Tensor]:
    """Every stage and the actions of one batch."""
    with engine(directory, **how) as running:
        result = running.step(LerobotBatch(tensors, num_steps=steps, trace=True))
    return {**result.stages, "actions": result.actions}


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm())


def cosine(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(got.double().flatten(), want.double().flatten(), dim=0))


def copy_case(name: str, target: Path, *, tensors: Any = None, config: Any = None, arch: Any = None) -> Path:
    """A copy of a handed checkpoint with changes: ``tensors`` maps the state dict to another one."""
    source = DATA / name
    target.mkdir(parents=True, exist_ok=True)
    for file, change in (("config.json", config), ("arch.json", arch)):
        content = json.loads((source / file).read_text())
        (target / file).write_text(json.dumps({**content, **(change or {})}))
    state = load_file(source / "model.safetensors")
    save_file(state if tensors is None else tensors(state), target / "model.safetensors")
    return target


def random_checkpoint(
    target: Path, family: str, *, cameras: int = 2, empty_cameras: int = 0, heads: int = 4, kv_heads: int = 1,
    head_dim: int = 8, width: int = 24, expert_width: int = 16, depth: int = 3, chunk: int = 6, steps: int = 4,
    state_dim: int = 5, action_dim: int = 3, vocabulary: int = 40, dtype: str = "float32", seed: int = 0,
) -> Path:  # fmt: skip
    """A checkpoint with random weights in sizes of one's choice."""
    target.mkdir(parents=True, exist_ok=True)
    attention = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "depth": depth}
    arch = {
        "family": family,
        "language_model": {"width": width, "mlp_dim": 2 * width + 4, **attention},
        "expert": {"width": expert_width, "mlp_dim": 2 * expert_width, **attention},
        "vision": {
            "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3,
            "image_size": 16, "patch_size": 8,
        },
        "vocab_size": vocabulary,
    }  # fmt: skip
    image = {"type": "VISUAL", "shape": [3, 16, 16]}
    config = {
        "type": family,
        "input_features": {
            **{f"observation.images.cam{i}": image for i in range(cameras)},
            "observation.state": {"type": "STATE", "shape": [state_dim]},
        },
        "output_features": {"action": {"type": "ACTION", "shape": [action_dim]}},
        "dtype": dtype,
        "chunk_size": chunk,
        "max_state_dim": 8,
        "max_action_dim": 6,
        "num_inference_steps": steps,
        "image_resolution": [16, 16],
        "empty_cameras": empty_cameras,
        "tokenizer_max_length": 12,
    }
    (target / "arch.json").write_text(json.dumps(arch))
    (target / "config.json").write_text(json.dumps(config))
    parsed = PiConfig.load(target)
    scope = Scope(None, torch.device("cpu"), family, "", torch.float32, torch.float32)  # type: ignore[arg-type]
    model = model_class(family)(scope, parsed, Precision.of(parsed, None), Savings())
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for spec in model.tensors():
        scale = 0.3 if len(spec.shape) == 1 else spec.shape[-1] ** -0.5
        state[spec.name] = torch.randn(spec.shape, generator=generator) * scale
    save_file(state, target / "model.safetensors")
    return target


def random_batch(
    directory: Path, *, batch: int = 2, present: int | None = None, tokens: int = 7, seed: int = 0
) -> dict[str, torch.Tensor]:
    """A batch in lerobot's names: the first ``present`` cameras, prompts of different length."""
    config = PiConfig.load(directory)
    g = torch.Generator().manual_seed(seed)
    size = config.vision.image_size
    lengths = torch.randint(1, tokens + 1, (batch, 1), generator=g)
    lengths[0] = tokens
    return {
        **{camera: torch.rand(batch, 3, size, size, generator=g) for camera in config.cameras[:present]},
        "observation.state": torch.rand(batch, config.state_dim, generator=g) * 2 - 1,
        "observation.language.tokens": torch.randint(0, config.vocab_size, (batch, tokens), generator=g),
        "observation.language.attention_mask": torch.arange(tokens)[None] < lengths,
        "noise": torch.randn(batch, config.chunk_size, config.max_action_dim, generator=g),
    }


def inputs_of(
    batch: dict[str, torch.Tensor], config: PiConfig, noise: torch.Tensor | None = None, device: str = "cpu"
) -> Inputs:
    """A batch in lerobot's names as an engine makes it ready, its images on ``device``."""
    checks, mask = Checks(torch.device(device)), lerobot_cameras(batch, config)
    images = blank_images(mask, config, torch.device(device))
    lerobot_images(batch, config, images, checks)
    inputs = lerobot_inputs(small_on_host(batch), config, images, mask, noise)
    checks.make()
    return inputs
