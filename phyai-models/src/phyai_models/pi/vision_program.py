"""The vision tower over buffers that stay in place: an inference begins with it, before its prompt is known."""

from __future__ import annotations

import torch

from phyai_models.pi.bucketed import Filling
from phyai_models.pi.model import PiModel
from phyai_models.runner import Recording


class VisionProgram:
    """The stage ``vision`` of ``batch`` requests with ``cameras`` images each, whatever their prompts.

    :meth:`load` writes images into the buffer, and :attr:`recording` computes the first :attr:`rows` rows of
    :attr:`embeddings`, behind which every program of as many images puts those of its prompts.
    """

    def __init__(self, model: PiModel, batch: int, cameras: int) -> None:
        self.model, self.batch, self.cameras = model, batch, cameras
        config, towers = model.config, model.precision.towers
        size, self.rows = config.vision.image_size, batch * cameras * config.vision.patches
        longest, width = self.rows + batch * config.tokenizer_max_length, config.language_model.width
        self.images = torch.zeros(batch, cameras, 3, size, size, dtype=torch.float32, device=model.device)
        self.embeddings = torch.zeros(longest, width, dtype=towers, device=model.device)
        self.recording: Recording | None = None
        self._filling: Filling | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return self.images.nbytes + self.embeddings.nbytes

    def serves(self, camera_mask: torch.Tensor) -> bool:
        """Whether the last request had the same cameras."""
        return self._filling is not None and self._filling.serves(camera_mask)

    def load(self, images: torch.Tensor, camera_mask: torch.Tensor) -> None:
        """Write the images of a batch, on the host or on the device, into the buffer, unless they are :attr:`images`,
        the buffer itself."""
        if self._filling is None or not self._filling.serves(camera_mask):
            self._filling = Filling.of(camera_mask, self.cameras, drop_masked=self.model.savings.drop_masked)
        if images is not self.images:
            self._filling.images(self._there(images), self.images)

    def compute(self) -> None:
        """The stage, launched kernel by kernel."""
        self.model.embed_images_into(self.embeddings[: self.rows], self.images.flatten(0, 1))

    def _there(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` on the device. Nobody may wait for this request: when this returns, the caller's own memory is
        done with, pinned or not."""
        device = self.images.device
        if device.type == "cpu" or images.device.type != "cpu":
            return images.to(device)
        return torch.empty_like(images, pin_memory=True).copy_(images).to(device, non_blocking=True)
