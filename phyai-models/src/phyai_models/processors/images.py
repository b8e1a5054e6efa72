"""Camera images to the model's input: checked, resized without distortion, scaled to [-1, 1].

Pixels go to the device as they came, uint8 in a quarter of the bytes, and become floating point and are resized there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from phyai.errors import InputError

from phyai_models.processors.checks import Checks, Judge

CPU = torch.device("cpu")
_BRIGHTEST = torch.tensor(255.0, dtype=torch.float32, device=CPU)
_MINUS_ONE = torch.tensor(-1.0, dtype=torch.float32, device=CPU)


def place_images(
    images: Sequence[torch.Tensor], cameras: Sequence[str], out: torch.Tensor, places: Sequence[int], checks: Checks
) -> None:
    """Write pixels as SigLIP takes them, in [-1, 1] and in its size, to ``out [P, B, 3, size, size]``, float32.

    ``images [B, 3, height, width]``, uint8 or floating point in [0, 1], go to the ascending ``places`` of the P; the
    other places are blank, all -1. ``cameras`` name them in errors.

    Raises:
        InputError: another dtype, values outside the range, or an image too elongated.
    """
    device, size = out.device, out.shape[-1]
    pixels = [_pixels(image.detach(), camera) for image, camera in zip(images, cameras, strict=True)]
    together = len({(p.shape, p.stride(), p.dtype, p.device) for p in pixels}) == 1 and _goes_up(pixels[0], device)
    for some in [slice(0, None)] if together else [slice(i, i + 1) for i in range(len(pixels))]:
        unit, to = _unit_range(pixels[some], cameras[some], device, checks), places[some]
        if to[-1] - to[0] == len(to) - 1:
            preprocess(unit, size, out[to[0] : to[-1] + 1])
        else:
            for place, image in zip(to, unit.unbind(), strict=True):
                preprocess(image, size, out[place])
    for place in set(range(out.shape[0])).difference(places):
        out[place] = -1.0


def to_chw(image: Any, camera: str) -> torch.Tensor:
    """One image as a tensor ``[3, H, W]`` of its own pixels.

    ``image`` is a NumPy array, a torch tensor or a PIL image; ``[H, W, 3]`` or ``[3, H, W]``. ``camera`` names it in
    errors.

    >>> to_chw(np.full((2, 4, 3), 255, np.uint8), "wrist").shape
    torch.Size([3, 2, 4])

    Raises:
        InputError: no image, wrong number of dimensions or channels.
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
    return tensor if first else tensor.permute(2, 0, 1)


def _tensor(image: Any, camera: str) -> torch.Tensor:
    if isinstance(image, torch.Tensor):
        return image.detach()
    try:  # torch takes neither an array that cannot be written to nor one that runs backwards
        usable = isinstance(image, np.ndarray) and image.flags.writeable and min(image.strides, default=0) >= 0
        return torch.from_numpy(image if usable else np.array(image))
    except (TypeError, ValueError):  # NumPy makes objects of what it does not know, and torch has no such dtype
        what = f"an array of dtype {image.dtype}" if isinstance(image, np.ndarray) else f"a {type(image).__name__}"
        raise InputError(
            f"{camera}: {'None' if image is None else what} is no image; give a NumPy array, a torch tensor or a PIL "
            "image, [height, width, 3], uint8 or floating point in [0, 1], or leave the camera out"
        ) from None


def _unit_range(
    images: Sequence[torch.Tensor], cameras: Sequence[str], device: torch.device, checks: Checks
) -> torch.Tensor:
    """Images that lie alike, one of them where they do not go up to a GPU, as float32 ``[N, B, 3, H, W]`` in [0, 1] on
    ``device``."""
    if _goes_up(images[0], device):
        last = not images[0].is_contiguous() and images[0].permute(0, 2, 3, 1).is_contiguous()
        there, sent = upload([image.permute(0, 2, 3, 1) for image in images] if last else images, device)
        there = there.permute(0, 1, 4, 2, 3) if last else there
    else:
        sent, there = images, images[0].to(device)[None]
    if there.dtype == torch.uint8:
        return torch.div(there, _BRIGHTEST)
    for image, camera in zip(sent, cameras, strict=True):  # what was sent, whatever becomes of the caller's
        checks.bounds(image, _in_unit_range(camera))
    return there


def _goes_up(tensor: torch.Tensor, device: torch.device) -> bool:
    return device.type == "cuda" and tensor.device.type == "cpu"


def _pixels(image: torch.Tensor, camera: str) -> torch.Tensor:
    if image.dtype == torch.uint8:
        return image
    if not image.is_floating_point():
        raise InputError(f"{camera}: pixels of dtype {image.dtype}; give uint8, or floating point in [0, 1]")
    return image.to(torch.float32)


def _in_unit_range(camera: str) -> Judge:
    def judge(low: float, high: float) -> None:
        if not (low >= -1e-4 and high <= 1 + 1e-4):  # also false for NaN
            raise InputError(
                f"{camera}: floating-point pixels span [{low:.4g}, {high:.4g}]; give [0, 1] (divide by 255), or uint8"
            )

    return judge


def upload(tensors: Sequence[torch.Tensor], device: torch.device) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """Tensors of one shape and dtype on the host, in one ``[N, ...]`` on a GPU, and what is sent of each.

    They go through pinned memory, unless they lie there, and nothing is waited for: while one is copied by the GPU the
    next is brought there.
    """
    shape, dtype = (len(tensors), *tensors[0].shape), tensors[0].dtype
    there = torch.empty(shape, dtype=dtype, device=device)
    sent: Sequence[torch.Tensor] = tensors
    pinned = all(tensor.is_pinned() for tensor in tensors)
    if not pinned:
        sent = torch.empty(shape, dtype=dtype, pin_memory=True).unbind()
    for target, held, tensor in zip(there.unbind(), sent, tensors, strict=True):
        if not pinned:
            np.copyto(held.numpy(), tensor.numpy())  # in this thread: to wake others takes longer than such a copy
        target.copy_(held, non_blocking=True)
    return there, sent


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
    """``[..., 3, H, W]`` in [0, 1] to ``[..., 3, size, size]`` in [-1, 1], as SigLIP takes it; written to ``out`` where
    that is given."""
    if images.shape[-2:] != (size, size):
        images = resize_with_pad(images.flatten(0, -4), size).view(*images.shape[:-2], size, size)
    return torch.add(_MINUS_ONE, images, alpha=2.0, out=out)  # doubling is exact: one rounding, as of 2x - 1
