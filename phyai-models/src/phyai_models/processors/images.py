"""Camera images to the model's input: checked, resized without distortion, scaled to [-1, 1].

Pixels go to the device as they came, uint8 in a quarter of the bytes, and become floating point and are resized there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from phyai.errors import InputError

from phyai_models.processors.checks import Checks

CPU = torch.device("cpu")
_BRIGHTEST = torch.tensor(255.0, dtype=torch.float32, device=CPU)
_MINUS_ONE = torch.tensor(-1.0, dtype=torch.float32, device=CPU)


def to_chw(image: Any, camera: str, device: torch.device = CPU, checks: Checks | None = None) -> torch.Tensor:
    """One image as float32 ``[3, H, W]`` in [0, 1], on ``device``.

    ``image`` is a NumPy array, a torch tensor or a PIL image; ``[H, W, 3]`` or ``[3, H, W]``; uint8 in 0..255
    or floating point in [0, 1]. ``camera`` names it in errors. ``checks`` makes those of values; None makes them now.

    >>> to_chw(np.full((2, 4, 3), 255, np.uint8), "wrist").shape
    torch.Size([3, 2, 4])

    Raises:
        InputError: no image, wrong number of dimensions or channels, another dtype, or values outside the range.
    """
    tensor = _tensor(image, camera)
    if tensor.ndim != 3 or 0 in tensor.shape:
        raise InputError(
            f"{camera}: an image of shape {list(tensor.shape)}; give [height, width, 3] or [3, height, width]"
        )
    first, last = tensor.shape[0] == 3, tensor.shape[-1] == 3
    if first == last:
        why = "either end could be the channels" if first else "neither end is 3 colour channels"
        raise InputError(
            f"{camera}: an image of shape {list(tensor.shape)}, where {why}; give RGB as [height, width, 3]"
        )
    pixels = unit_range(tensor, camera, device, checks)
    return pixels if first else pixels.permute(2, 0, 1)


def _tensor(image: Any, camera: str) -> torch.Tensor:
    if isinstance(image, torch.Tensor):
        return image.detach()
    try:
        return torch.from_numpy(np.array(image))
    except (TypeError, ValueError):  # NumPy makes objects of what it does not know, and torch has no such dtype
        what = f"an array of dtype {image.dtype}" if isinstance(image, np.ndarray) else f"a {type(image).__name__}"
        raise InputError(
            f"{camera}: {'None' if image is None else what} is no image; give a NumPy array, a torch tensor or a PIL "
            "image, [height, width, 3], uint8 or floating point in [0, 1], or leave the camera out"
        ) from None


def unit_range(
    image: torch.Tensor, camera: str, device: torch.device = CPU, checks: Checks | None = None
) -> torch.Tensor:
    """uint8 in 0..255, or floating point in [0, 1], as float32 in [0, 1], on ``device``, in the same order of
    dimensions. ``checks`` makes those of values; None makes them now.

    Raises:
        InputError: another dtype, or values outside [0, 1].
    """
    if image.dtype == torch.uint8:
        return torch.div(upload(image, device), _BRIGHTEST)
    if not image.is_floating_point():
        raise InputError(f"{camera}: pixels of dtype {image.dtype}; give uint8, or floating point in [0, 1]")

    def judge(low: float, high: float) -> None:
        if not (low >= -1e-4 and high <= 1 + 1e-4):  # also false for NaN
            raise InputError(
                f"{camera}: floating-point pixels span [{low:.4g}, {high:.4g}]; give [0, 1] (divide by 255), or uint8"
            )

    image = staged(image.to(torch.float32), device)  # what is judged is what is sent, whatever becomes of the caller's
    (checks or Checks(CPU)).bounds(image, judge)
    return upload(image, device)


def staged(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` where it can be sent to ``device`` without waiting: on the host, for a GPU, in pinned memory."""
    return tensor.pin_memory() if device.type == "cuda" and tensor.device.type == "cpu" else tensor


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` on ``device``; from the host to a GPU through pinned memory, without waiting for it. A copy to the
    host is waited for: what is read there must have arrived."""
    return staged(tensor, device).to(device, non_blocking=device.type == "cuda")


def resize_with_pad(images: torch.Tensor, size: int) -> torch.Tensor:
    """Resize ``[B, 3, H, W]`` in [0, 1] to ``[B, 3, size, size]``, keeping the aspect ratio.

    Bilinear without antialiasing and with half-pixel centres, then black borders, the odd pixel at the bottom or
    right: what openpi's ``resize_with_pad_torch`` and lerobot's copy of it compute. An image that already has the
    size is returned unchanged.

    >>> resize_with_pad(torch.ones(1, 3, 100, 200), 50)[0, 0, :, 0].sum()
    tensor(25.)
    """
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    ratio = max(width / size, height / size)
    resized = int(height / ratio), int(width / ratio)
    if 0 in resized:
        raise InputError(f"an image of {height}×{width} pixels is too elongated to fit {size}×{size}")
    images = F.interpolate(images, size=resized, mode="bilinear", align_corners=False).clamp(0.0, 1.0)
    top, rest_h = divmod(size - resized[0], 2)
    left, rest_w = divmod(size - resized[1], 2)
    return F.pad(images, (left, left + rest_w, top, top + rest_h))


def preprocess(images: torch.Tensor, size: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """``[B, 3, H, W]`` in [0, 1] to ``[B, 3, size, size]`` in [-1, 1], as SigLIP takes it; written to ``out`` where
    that is given."""
    resized = resize_with_pad(images, size)
    return torch.add(_MINUS_ONE, resized, alpha=2.0, out=out)  # doubling is exact: one rounding, as of 2x - 1
