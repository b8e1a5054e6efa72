"""What a hosted π model is asked and answers, beside :class:`phyai_models.pi.inputs.Observation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from phyai.errors import InputError

from phyai_models.pi.config import MAX_STEPS, STEPS, PiConfig
from phyai_models.pi.inputs import Inputs


def a_number_of_steps(_: Any, attribute: Any, value: int | None) -> None:
    if value is not None and (type(value) is not int or not 1 <= value <= MAX_STEPS):
        raise InputError(f"{attribute.name}={value!r}; {STEPS}")


def a_seed(_: Any, attribute: Any, value: int | None) -> None:
    """What torch's generators take."""
    if value is not None and not -(2**63) <= value < 2**64:
        raise InputError(f"{attribute.name}={value!r}; give a whole number from -2**63 to 2**64-1")


@attrs.frozen
class LerobotBatch:
    """A batch in lerobot's own names, as its preprocessor left it: images in [0, 1], normalized state, tokens and
    their mask, and optionally ``noise``. ``trace`` also returns what every stage computed."""

    tensors: Mapping[str, torch.Tensor]
    num_steps: int | None = attrs.field(default=None, validator=a_number_of_steps)
    trace: bool = False


@attrs.frozen(eq=False)
class DeviceBatch:
    """A batch that is ready for the model: what is large may lie on the engine's device, and the answer stays there.

    ``images`` ``[B, C, 3, S, S]`` in [-1, 1] and ``noise`` ``[B, chunk_size, max_action_dim]`` on the host or on the
    device, in any floating dtype; ``tokens`` int64 ``[B, N]`` and the masks ``token_mask [B, N]``,
    ``camera_mask [B, C]`` on the host, where lengths are planned. ``state`` (π0) ``[B, max_state_dim]``, normalized.
    The answer is float32 ``[B, chunk_size, max_action_dim]``, still normalized. It is not waited for, and the next
    request may overwrite it. Values are not looked at, which would mean waiting.
    """

    images: torch.Tensor
    tokens: torch.Tensor
    noise: torch.Tensor
    token_mask: torch.Tensor | None = None
    camera_mask: torch.Tensor | None = None
    state: torch.Tensor | None = None
    num_steps: int | None = attrs.field(default=None, validator=a_number_of_steps)

    def inputs(self, config: PiConfig) -> Inputs:
        """Completed, and checked, but for what :func:`phyai_models.pi.inputs.check_tokens` looks at.

        Raises:
            InputError: a tensor that does not fit, with what it should be.
        """
        optional = ("token_mask", "camera_mask", "state")
        for name in _DTYPES:
            tensor = getattr(self, name)
            if tensor is not None or name not in optional:
                _check_dtype(name, tensor)
        if config.family == "pi0" and self.state is None:
            raise InputError("the batch lacks state, which π0 looks at")
        size, batch = config.vision.image_size, self.tokens.shape[0] if self.tokens.ndim else 0
        cameras = self.images.shape[1] if self.images.ndim > 1 else 0
        if not 0 < cameras <= len(config.cameras):
            raise InputError(f"images of {cameras} cameras; this checkpoint knows {len(config.cameras)}")
        given = {
            "images": (self.images, (batch, cameras, 3, size, size)),
            "noise": (self.noise, (batch, config.chunk_size, config.max_action_dim)),
            "tokens": (self.tokens, (batch, self.tokens.shape[-1] if self.tokens.ndim else 0)),
            "token_mask": (_or(self.token_mask, self.tokens.shape, True), tuple(self.tokens.shape)),
            "camera_mask": (_or(self.camera_mask, (batch, cameras), True), (batch, cameras)),
            "state": (_or(self.state, (batch, config.max_state_dim), 0.0), (batch, config.max_state_dim)),
        }
        for name, (tensor, shape) in given.items():
            if tuple(tensor.shape) != shape or batch == 0:
                raise InputError(f"{name} has shape {list(tensor.shape)}; give {list(shape)}, of at least one request")
        for name in ("tokens", "token_mask", "camera_mask"):
            if given[name][0].device.type != "cpu":
                raise InputError(
                    f"{name} lies on {given[name][0].device}; give it on the CPU, where lengths are planned"
                )
        return Inputs(**{name: tensor for name, (tensor, _) in given.items()})


#: What the tensors of a :class:`DeviceBatch` hold; None is any floating dtype.
_DTYPES = {
    "images": None, "noise": None, "state": None,
    "tokens": torch.int64, "token_mask": torch.bool, "camera_mask": torch.bool,
}  # fmt: skip


def _check_dtype(name: str, tensor: Any) -> None:
    want = _DTYPES[name]
    words = "a floating dtype" if want is None else str(want).removeprefix("torch.")
    if not isinstance(tensor, torch.Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}; give a tensor of {words}")
    if not (tensor.is_floating_point() if want is None else tensor.dtype == want):
        span = ", in [-1, 1]" if name == "images" else ""
        raise InputError(f"{name} is {str(tensor.dtype).removeprefix('torch.')}; give {words}{span}")


def _or(tensor: torch.Tensor | None, shape: Any, value: Any) -> torch.Tensor:
    return torch.full(tuple(shape), value) if tensor is None else tensor


@attrs.frozen
class NewWeights:
    """Other weights for the model that runs, of the same architecture, from the checkpoint in ``checkpoint_dir`` (or a
    :class:`phyai_models.pi.hosted.RandomCheckpoint`).

    They are written into the memory of the old ones: nothing is prepared or captured again. The checkpoint is checked
    as at the start, its quantization against that in use, for which what it stores quantized is read twice, and that
    every kernel in use can take others; what is refused so changes nothing.
    """

    checkpoint_dir: Any


@attrs.frozen
class ActionChunk:
    """What the robot should do: ``actions`` float32 ``[chunk_size, action_dim]``, in its own units, one row a step."""

    actions: torch.Tensor


@attrs.frozen
class BatchResult:
    """What came of a batch in lerobot's names: ``actions [B, chunk_size, action_dim]``, still normalized, and, when
    they were asked for, the stages by name."""

    actions: torch.Tensor
    stages: dict[str, torch.Tensor] = attrs.field(factory=dict)
