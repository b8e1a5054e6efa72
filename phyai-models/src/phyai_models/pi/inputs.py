"""What a π model is given, checked and brought to one form on the host.

Two kinds of request lead there: :class:`Observation`, what a robot sees and is told, and a batch in
lerobot's own names, whose images, state and tokens went through its preprocessor already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from phyai.errors import InputError

from phyai_models.pi.config import IMAGES, STATE, PiConfig
from phyai_models.processors.checks import Checks
from phyai_models.processors.images import CPU, place_images, to_chw

TOKENS = "observation.language.tokens"
TOKEN_MASK = "observation.language.attention_mask"
NOISE = "noise"


@attrs.frozen
class Observation:
    """What a robot sees and is told at one moment.

    ``images`` by camera: the checkpoint's key, or its last part (``base_0_rgb`` for
    ``observation.images.base_0_rgb``). A camera that is not given counts as missing: the model does not
    look there. An image is ``[H, W, 3]`` or ``[3, H, W]``, uint8 or floating point in [0, 1], of any size.
    ``state`` is in the robot's own units. ``noise`` ``[chunk_size, max_action_dim]`` makes the answer
    reproducible; by default it is drawn from the engine's generator.
    """

    images: Mapping[str, Any]
    instruction: str
    state: Any
    noise: Any = None


@attrs.frozen(eq=False)
class Inputs:
    """A batch of B requests, C cameras and N token slots each, on the CPU; images, state and noise also on the device.

    ``images`` float32 ``[B, C, 3, S, S]`` in [-1, 1], ``camera_mask`` bool ``[B, C]``: False for a missing
    camera, whose image is all -1. ``tokens`` int64 ``[B, N]``, ``token_mask`` bool ``[B, N]``. ``state``
    float32 ``[B, max_state_dim]``, padded with zeros. ``noise`` float32 ``[B, chunk_size, max_action_dim]``.
    """

    images: torch.Tensor
    camera_mask: torch.Tensor
    tokens: torch.Tensor
    token_mask: torch.Tensor
    state: torch.Tensor
    noise: torch.Tensor

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]


def blank_images(camera_mask: torch.Tensor, config: PiConfig, device: torch.device) -> torch.Tensor:
    """Memory for the images of :class:`Inputs`."""
    size = config.vision.image_size
    return torch.empty(*camera_mask.shape, 3, size, size, dtype=torch.float32, device=device)


def lerobot_cameras(batch: Mapping[str, torch.Tensor], config: PiConfig) -> torch.Tensor:
    """The camera mask of a batch as lerobot's policy takes it: images in [0, 1], normalized state, tokens, their mask.

    Cameras that the batch lacks are missing for all its requests, and come after the others, as lerobot orders them.
    What is neither a camera nor one of these nor noise is not read.

    Raises:
        InputError: an entry is missing, unknown or misshapen.
    """
    unknown = [name for name in batch if name.startswith(f"{IMAGES}.") and name not in config.cameras]
    if unknown:
        raise InputError(
            f"unknown cameras {', '.join(sorted(unknown))}; this checkpoint knows {', '.join(config.cameras)}"
        )
    needed = [TOKENS, TOKEN_MASK, *([STATE] if config.family == "pi0" else [])]
    missing = [name for name in needed if name not in batch]
    if missing:
        raise InputError(f"the batch lacks {', '.join(missing)}")
    tokens, token_mask = batch[TOKENS], batch[TOKEN_MASK]
    usable = tokens.ndim == 2 and tokens.shape[0] > 0 and tokens.dtype in (torch.int32, torch.int64)
    if not usable or token_mask.shape != tokens.shape or token_mask.dtype != torch.bool:
        raise InputError(
            f"{TOKENS} should be int64 [batch, tokens] and {TOKEN_MASK} bool of the same shape; they are "
            f"{tokens.dtype} {list(tokens.shape)} and {token_mask.dtype} {list(token_mask.shape)}"
        )
    present = sum(camera in batch for camera in config.cameras)
    if not present:
        raise InputError(f"no camera image is given; at least one of {', '.join(config.cameras)} is needed")
    mask = torch.ones(tokens.shape[0], len(config.cameras), dtype=torch.bool)
    if present < len(config.cameras):
        mask[:, present:] = False
    return mask


def lerobot_images(batch: Mapping[str, torch.Tensor], config: PiConfig, out: torch.Tensor, checks: Checks) -> None:
    """Write the images of such a batch to ``out [B, C, 3, S, S]``, in memory that lies where the model does. ``checks``
    makes those of their values.

    Raises:
        InputError: an image cannot be used.
    """
    present = [camera for camera in config.cameras if camera in batch]
    images = [_lerobot_image(batch[camera], camera, out.shape[0]) for camera in present]
    place_images(images, present, out.transpose(0, 1), range(len(present)), checks)


def lerobot_inputs(
    small: Mapping[str, torch.Tensor],
    config: PiConfig,
    images: torch.Tensor,
    camera_mask: torch.Tensor,
    noise: torch.Tensor | None,
) -> Inputs:
    """``images`` and ``camera_mask`` of such a batch, which are there already, with everything else, as
    :func:`small_on_host` gives it. ``noise`` stands in when the batch has none.

    Raises:
        InputError: tokens, state or noise cannot be used.
    """
    tokens, token_mask, size = small[TOKENS].to(torch.int64), small[TOKEN_MASK], images.shape[0]
    check_tokens(tokens, token_mask, config)
    state = small.get(STATE)
    return Inputs(
        images=images,
        camera_mask=camera_mask,
        tokens=tokens,
        token_mask=token_mask,
        state=torch.zeros(size, config.max_state_dim) if state is None else _state(state, size, config),
        noise=checked_noise(small.get(NOISE, noise), size, config),
    )


def small_on_host(batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What of a batch is no image, on the CPU. What lies on a GPU is waited for, together, and with it all that the GPU
    was given before: ask for it before the GPU is given the images to look at."""
    tensors = {name: batch[name] for name in (TOKENS, TOKEN_MASK, STATE, NOISE) if name in batch}
    brought = {name: tensor.to(CPU, non_blocking=True) for name, tensor in tensors.items()}
    for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return brought


def _lerobot_image(image: torch.Tensor, camera: str, batch: int) -> torch.Tensor:
    usable = image.ndim == 4 and 0 not in image.shape and 3 in (image.shape[1], image.shape[-1])
    if not usable or image.shape[0] != batch:
        raise InputError(f"{camera} has shape {list(image.shape)}; give [{batch}, 3, height, width]")
    return image if image.shape[1] == 3 else image.permute(0, 3, 1, 2)


def _state(state: torch.Tensor, batch: int, config: PiConfig) -> torch.Tensor:
    state = state.detach().to(torch.float32)
    known = config.state_dim < config.max_state_dim  # otherwise lerobot wrote the padded length, whatever the robot's
    lengths = (config.state_dim, config.max_state_dim) if known else range(config.max_state_dim + 1)
    if state.ndim != 2 or state.shape[0] != batch or state.shape[1] not in lengths:
        also = f" or, padded, [{batch}, {config.max_state_dim}]" if known else " or fewer numbers"
        raise InputError(f"{STATE} has shape {list(state.shape)}; give [{batch}, {config.state_dim}]{also}")
    if not finite(state):
        raise InputError(f"{STATE} holds NaN or infinite values")
    return torch.nn.functional.pad(state, (0, config.max_state_dim - state.shape[1]))


def checked_noise(noise: Any, batch: int, config: PiConfig) -> torch.Tensor:
    """``noise`` as float32 ``[batch, chunk_size, max_action_dim]``.

    Raises:
        InputError: another shape, or values that are not finite.
    """
    shape = (batch, config.chunk_size, config.max_action_dim)
    values = float_tensor(noise, "noise")
    if values.shape != shape or not finite(values):
        raise InputError(f"noise should be finite numbers of shape {list(shape)}; it has shape {list(values.shape)}")
    return values


def finite(values: torch.Tensor) -> bool:
    """Whether there is neither NaN nor an infinite value in a tensor on the host.

    >>> finite(torch.tensor([1.0, -2.0])), finite(torch.tensor([float("nan"), 1.0])), finite(torch.zeros(0))
    (True, False, True)
    """
    return values.numel() == 0 or all(math.isfinite(bound.item()) for bound in torch.aminmax(values))


def float_tensor(value: Any, what: str) -> torch.Tensor:
    """``value`` (numbers, nested lists of them, a NumPy array, a tensor) as a float32 tensor on the CPU.

    Raises:
        InputError: it holds something else.
    """
    try:
        return torch.as_tensor(value).detach().cpu().to(torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{what} should be numbers: {error}") from error


def check_tokens(tokens: torch.Tensor, mask: torch.Tensor, config: PiConfig) -> None:
    """Check token ids and prompt lengths.

    Raises:
        InputError: an id outside the vocabulary, or a prompt longer than the model takes.
    """
    low, high = (int(bound) for bound in torch.aminmax(tokens)) if tokens.numel() else (0, 0)
    if low < 0 or high >= config.vocab_size:
        raise InputError(
            f"token ids span {low}..{high}; the vocabulary has ids 0..{config.vocab_size - 1}. "
            "Is the tokenizer that of this checkpoint?"
        )
    longest = int(mask.sum(1).max()) if mask.shape[1] > config.tokenizer_max_length else 0
    if longest > config.tokenizer_max_length:
        raise InputError(
            f"a prompt of {longest} tokens; this checkpoint takes {config.tokenizer_max_length} "
            "(tokenizer_max_length). Shorten the instruction"
        )


def cameras_seen(
    observations: Sequence[Observation], config: PiConfig, rename: Mapping[str, str]
) -> tuple[torch.Tensor, dict[int, tuple[str, Any]]]:
    """The camera mask ``[B, C]`` of a batch of observations, and their images with their names by place in its flat
    form, ascending.

    Raises:
        InputError: an unknown camera, one given twice, or none.
    """
    mask = torch.zeros(len(observations), len(config.cameras), dtype=torch.bool)
    by_name = {name: i for i, camera in enumerate(config.cameras) for name in (camera, camera.rpartition(".")[2])}
    images: dict[int, tuple[str, Any]] = {}
    for b, observation in enumerate(observations):
        for name, image in observation.images.items():
            name = rename.get(name, name)
            if name not in by_name:
                known = ", ".join(camera.rpartition(".")[2] for camera in config.cameras)
                raise InputError(f"unknown camera {name!r}; this checkpoint knows {known}")
            c = by_name[name]
            place = b * len(config.cameras) + c
            if place in images:
                raise InputError(f"camera {config.cameras[c]} is given twice")
            images[place] = name, image
            mask[b, c] = True
        if not observation.images:
            raise InputError("an observation without any camera image; give at least one")
    return mask, dict(sorted(images.items()))


def camera_images(images: Mapping[int, tuple[str, Any]], out: torch.Tensor, checks: Checks) -> None:
    """Write the images of :func:`cameras_seen` to ``out [B, C, 3, S, S]``, in memory that lies where the model does.
    ``checks`` makes those of their values.

    Raises:
        InputError: an image that cannot be used.
    """
    names = [name for name, _ in images.values()]
    pixels = [to_chw(image, name)[None] for name, image in images.values()]
    place_images(pixels, names, out.flatten(0, 1)[:, None], list(images), checks)
