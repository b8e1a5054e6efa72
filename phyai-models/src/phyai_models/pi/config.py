"""What a π checkpoint says of itself: ``config.json`` as lerobot writes it, and ``arch.json``.

lerobot's configuration names the towers by variant (``gemma_2b``, ``gemma_300m``) and cannot express other
sizes; ``arch.json`` beside it gives them when they are not the standard ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from phyai.errors import CheckpointError
from phyai.files.json_file import read_json

STATE = "observation.state"
ACTION = "action"
IMAGES = "observation.images"


#: What a configuration may ask for, so that none makes a machine allocate or loop without end: far beyond any model.
MAX_SIZE, MAX_LAYERS, MAX_HEADS, MAX_HEAD_DIM, MAX_VOCAB = 1 << 20, 1024, 1024, 4096, 1 << 24
MAX_IMAGE, MAX_CAMERAS, MAX_CHUNK, MAX_PROMPT, MAX_STEPS = 4096, 64, 8192, 8192, 1000
#: Why there is a limit.
GROWS = "memory and time grow with it, and no model is near that"
#: What is said of a number of steps that is out of range.
STEPS = f"give a whole number from 1 to {MAX_STEPS}: every step takes time, and π0.5's a row of modulations"
#: Tokens of a request: the patches of all cameras, the prompt, and the actions.
MAX_TOKENS = 1 << 16


def _count(limit: int) -> Any:
    """A validator: a whole number from 1 to ``limit``."""

    def check(instance: Any, attribute: Any, value: Any) -> None:
        if type(value) is not int or not 1 <= value <= limit:
            why = f"; {GROWS}" if type(value) is int and value > limit else ""
            raise CheckpointError(f"{attribute.name} should be a whole number from 1 to {limit}, and is {value!r}{why}")

    return check


def _period(instance: Any, attribute: Any, value: float) -> None:
    if not 0 < value < math.inf:
        raise CheckpointError(f"{attribute.name} should be a positive number, and is {value!r}")


def size(limit: int, default: int) -> Any:
    """An attrs field that holds a whole number from 1 to ``limit``."""
    return attrs.field(default=default, validator=_count(limit))


@attrs.frozen
class GemmaConfig:
    """Sizes of a Gemma tower."""

    width: int = attrs.field(validator=_count(MAX_SIZE))
    depth: int = attrs.field(validator=_count(MAX_LAYERS))
    mlp_dim: int = attrs.field(validator=_count(MAX_SIZE))
    num_heads: int = attrs.field(validator=_count(MAX_HEADS))
    num_kv_heads: int = attrs.field(validator=_count(MAX_HEADS))
    head_dim: int = attrs.field(validator=_count(MAX_HEAD_DIM))
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0


@attrs.frozen
class SiglipConfig:
    """Sizes of the vision tower (SigLIP So400m/14 by default)."""

    hidden_size: int = size(MAX_SIZE, 1152)
    intermediate_size: int = size(MAX_SIZE, 4304)
    num_hidden_layers: int = size(MAX_LAYERS, 27)
    num_attention_heads: int = size(MAX_HEADS, 16)
    image_size: int = size(MAX_IMAGE, 224)
    patch_size: int = size(MAX_IMAGE, 14)
    layer_norm_eps: float = 1e-6

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2


GEMMA_VARIANTS: Mapping[str, GemmaConfig] = {
    "gemma_300m": GemmaConfig(width=1024, depth=18, mlp_dim=4096, num_heads=8, num_kv_heads=1, head_dim=256),
    "gemma_2b": GemmaConfig(width=2048, depth=18, mlp_dim=16_384, num_heads=8, num_kv_heads=1, head_dim=256),
}
VOCAB_SIZE = 257_152
FAMILIES = ("pi05", "pi0")
NORMALIZATIONS = ("IDENTITY", "MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10")


@attrs.frozen
class PiConfig:
    """A π0 or π0.5 checkpoint.

    ``cameras`` are the image keys in the order in which the model was trained to see them; ``state_dim`` and
    ``action_dim`` are the robot's own sizes, which the model pads to ``max_state_dim`` and ``max_action_dim``.
    ``dtype`` is lerobot's precision: ``float32``, or ``bfloat16`` for the mix that it calls by that name.
    """

    family: str
    language_model: GemmaConfig
    expert: GemmaConfig
    vision: SiglipConfig
    vocab_size: int = attrs.field(validator=_count(MAX_VOCAB))
    cameras: tuple[str, ...]
    state_dim: int = attrs.field(validator=_count(MAX_SIZE))
    action_dim: int = attrs.field(validator=_count(MAX_SIZE))
    chunk_size: int = size(MAX_CHUNK, 50)
    max_state_dim: int = size(MAX_SIZE, 32)
    max_action_dim: int = size(MAX_SIZE, 32)
    num_inference_steps: int = size(MAX_STEPS, 10)
    tokenizer_max_length: int = size(MAX_PROMPT, 200)
    min_period: float = attrs.field(default=4e-3, validator=_period)
    max_period: float = attrs.field(default=4.0, validator=_period)
    dtype: str = "float32"
    normalization: Mapping[str, str] = attrs.field(factory=dict)
    use_relative_actions: bool = False
    relative_exclude_joints: tuple[str, ...] = ()
    action_feature_names: tuple[str, ...] | None = None

    def __attrs_post_init__(self) -> None:
        tokens = len(self.cameras) * self.vision.patches + self.tokenizer_max_length + self.chunk_size
        if tokens > MAX_TOKENS:
            raise CheckpointError(
                f"{len(self.cameras)} cameras of {self.vision.patches} patches, tokenizer_max_length "
                f"{self.tokenizer_max_length} and chunk_size {self.chunk_size} make {tokens} tokens of a request; "
                f"at most {MAX_TOKENS} are supported"
            )

    @classmethod
    def standard(cls, family: str = "pi05", *, cameras: int = 3, **changes: Any) -> PiConfig:
        """The published architecture, with so many cameras.

        >>> PiConfig.standard("pi05", chunk_size=10).language_model.width
        2048
        """
        raw = {
            "type": family,
            "input_features": {f"{IMAGES}.camera{i}": {"type": "VISUAL"} for i in range(cameras)},
        }
        return attrs.evolve(_build(raw, {}), **changes)

    @classmethod
    def load(cls, directory: str | Path, family: str | None = None) -> PiConfig:
        """Read ``config.json`` and, when it is there, ``arch.json``.

        ``family`` is the model that was asked for; None takes what the checkpoint says.

        Raises:
            CheckpointError: a file is missing or malformed, or the checkpoint is of another model.
        """
        directory = Path(directory)
        raw = read_json(directory / "config.json")
        path = directory / "config.json"
        kind = raw.get("type")
        if kind not in FAMILIES:
            raise CheckpointError(f"{path} has type {kind!r}; this model reads {' and '.join(FAMILIES)}")
        if family is not None and kind != family:
            raise CheckpointError(f"{path} is a {kind} checkpoint, and {family} was asked for; run it as {kind}")
        arch = read_json(directory / "arch.json") if (directory / "arch.json").exists() else {}
        try:
            return _build(raw, arch)
        except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, CheckpointError):
                raise CheckpointError(f"{directory}: {error}") from error
            raise CheckpointError(f"{path} or arch.json beside it is malformed: {error!r}") from error


def _build(raw: Mapping[str, Any], arch: Mapping[str, Any]) -> PiConfig:
    family = raw["type"]
    if arch.get("family", family) != family:
        raise CheckpointError(f"config.json is of type {family}, and arch.json of family {arch['family']}")
    resolution = raw.get("image_resolution", [224, 224])
    if len(resolution) != 2 or resolution[0] != resolution[1]:
        raise CheckpointError(f"image_resolution {resolution} is not square; the vision tower takes square images")
    vision = SiglipConfig(**{"image_size": resolution[0], **arch.get("vision", {})})
    if vision.image_size != resolution[0]:
        raise CheckpointError(f"config.json says images of {resolution[0]}, and arch.json of {vision.image_size}")
    if vision.patch_size > vision.image_size or vision.hidden_size % vision.num_attention_heads:
        raise CheckpointError("vision: a patch must fit into the image, and num_attention_heads divide hidden_size")
    language = _gemma(arch, "language_model", raw, "paligemma_variant", "gemma_2b")
    expert = _gemma(arch, "expert", raw, "action_expert_variant", "gemma_300m")
    for name in ("depth", "num_kv_heads", "head_dim"):
        if getattr(language, name) != getattr(expert, name):
            raise CheckpointError(
                f"the expert attends to the language model's keys, so both need one {name}; "
                f"here {getattr(language, name)} and {getattr(expert, name)}"
            )
    inputs, outputs = dict(raw.get("input_features") or {}), dict(raw.get("output_features") or {})
    cameras = [key for key, feature in inputs.items() if feature["type"] == "VISUAL"]
    empty = raw.get("empty_cameras") or 0
    if type(empty) is not int or not 0 <= empty <= MAX_CAMERAS - len(cameras):
        raise CheckpointError(f"empty_cameras is {empty!r}; a model has at most {MAX_CAMERAS} cameras")
    for i in range(empty):
        if f"{IMAGES}.empty_camera_{i}" not in cameras:
            cameras.append(f"{IMAGES}.empty_camera_{i}")
    if not cameras:
        raise CheckpointError("input_features names no image (type VISUAL)")
    max_state, max_action = raw.get("max_state_dim", 32), raw.get("max_action_dim", 32)
    state_dim = inputs[STATE]["shape"][0] if STATE in inputs else max_state
    action_dim = outputs[ACTION]["shape"][0] if ACTION in outputs else max_action
    if state_dim > max_state or action_dim > max_action:
        raise CheckpointError(
            f"state of {state_dim} and action of {action_dim} exceed max_state_dim {max_state} "
            f"and max_action_dim {max_action}"
        )
    if raw.get("dtype", "float32") not in ("float32", "bfloat16"):
        raise CheckpointError(f"dtype {raw['dtype']!r}; allowed are float32 and bfloat16")
    if raw.get("n_obs_steps", 1) != 1:
        raise CheckpointError(f"n_obs_steps {raw['n_obs_steps']}: models of more than one moment are not supported")
    steps = "QUANTILES" if family == "pi05" else "MEAN_STD"
    normalization = {"VISUAL": "IDENTITY", "STATE": steps, "ACTION": steps} | dict(
        raw.get("normalization_mapping") or {}
    )
    for kind, mode in normalization.items():
        if mode not in NORMALIZATIONS:
            raise CheckpointError(f"normalization_mapping: {kind} is {mode!r}; known are {', '.join(NORMALIZATIONS)}")
    names = raw.get("action_feature_names")
    return PiConfig(
        family=family,
        language_model=language,
        expert=expert,
        vision=vision,
        vocab_size=arch.get("vocab_size", VOCAB_SIZE),
        cameras=tuple(cameras),
        state_dim=state_dim,
        action_dim=action_dim,
        chunk_size=raw.get("chunk_size", 50),
        max_state_dim=max_state,
        max_action_dim=max_action,
        num_inference_steps=raw.get("num_inference_steps", 10),
        tokenizer_max_length=raw.get("tokenizer_max_length", 200 if family == "pi05" else 48),
        min_period=float(raw.get("min_period", 4e-3)),
        max_period=float(raw.get("max_period", 4.0)),
        dtype=raw.get("dtype", "float32"),
        normalization=normalization,
        use_relative_actions=bool(raw.get("use_relative_actions", False)),
        relative_exclude_joints=tuple(raw.get("relative_exclude_joints") or ()),
        action_feature_names=None if names is None else tuple(names),
    )


def _gemma(arch: Mapping[str, Any], tower: str, raw: Mapping[str, Any], key: str, default: str) -> GemmaConfig:
    if tower in arch:
        return GemmaConfig(**arch[tower])
    variant = raw.get(key, default)
    if variant not in GEMMA_VARIANTS:
        raise CheckpointError(f"{key} is {variant!r}; known are {', '.join(GEMMA_VARIANTS)}")
    return GEMMA_VARIANTS[variant]
