"""One inference of fixed sizes over buffers that stay in place: what a CUDA graph is captured of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from phyai_models.layers import KVCache, Tokens
from phyai_models.pi.bucketed import Filling, Shape
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.layout import Layout, make_layout
from phyai_models.pi.model import PiModel
from phyai_models.runner import Mirror, Recording

#: What every request brings anew ends with this one; what follows from its lengths comes behind.
LAST_OF_REQUEST = "noise"
METADATA = ("cu_seqlens_q", "kv_indptr", "kv_indices", "last_page_len")


class Program:
    """The stages ``vision``, ``prefix`` and ``expert`` of one inference.

    :meth:`load` writes a batch into the buffers, :attr:`recording` computes, :attr:`actions` float32
    ``[batch, chunk, action]`` holds the result until the next time. Rows that fill up a bucket are computed and
    written behind the keys that anybody reads.
    """

    def __init__(self, model: PiModel, shape: Shape, cache: KVCache) -> None:
        self.model, self.shape, self.cache = model, shape, cache
        config, device = model.config, model.device
        batch, suffix = shape.batch, sum(model.segments)
        rows = batch * (shape.cameras * config.vision.patches + shape.prompt)
        requests = batch * len(model.segments)
        tokens, whole, narrow = (batch * shape.prompt,), torch.int64, torch.int32
        self._small = Mirror(
            {
                "token_ids": (whole, *tokens),
                "state": (torch.float32, batch, config.max_state_dim),
                LAST_OF_REQUEST: (torch.float32, batch, config.chunk_size, config.max_action_dim),
                "gather": (whole, rows), "prefix.positions": (whole, rows), "prefix.slots": (whole, rows),
                "suffix.positions": (whole, batch * suffix), "suffix.slots": (whole, batch * suffix),
                **{
                    f"{part}.{name}": (narrow, n + (name in ("cu_seqlens_q", "kv_indptr")))
                    for part, n in (("prefix", batch), ("suffix", requests)) for name in METADATA
                },
            },
            device,
        )  # fmt: skip
        size = config.vision.image_size
        self._images = torch.zeros(batch, shape.cameras, 3, size, size, dtype=torch.float32, device=device)
        self.actions = torch.zeros(batch, config.chunk_size, config.max_action_dim, device=device)
        self.prefix, self.suffix = (self._tokens(part) for part in ("prefix", "suffix"))
        self.recording: Recording | None = None
        self._patches = self._no_patches = torch.empty(0, device=device)
        self._filling: Filling | None = None
        self._lengths: list[int] = []
        self._uploaded = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def stages(self) -> Mapping[str, Callable[[], None]]:
        """The parts of :meth:`compute`, in their order."""
        return {"vision": self._vision, "prefix": self._fill, "expert": self._expert}

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers on the device."""
        return self._small.nbytes + self._images.nbytes + self.actions.nbytes

    def compute(self) -> None:
        """One inference, launched kernel by kernel."""
        for stage in self.stages.values():
            stage()
        self._patches = self._no_patches  # a graph's memory serves what comes next

    def load(self, inputs: Inputs, *, replan: bool) -> None:
        """Write a batch into the buffers, and plan again where its lengths ask for it.

        Tensors of ``inputs`` may lie on the host or on the device. ``replan``: another program may have planned since.
        """
        if self._uploaded is not None:
            self._uploaded.synchronize()  # the buffers on the host may still be on their way
        before = self._filling
        filling, lengths = self._arranged(inputs)
        small = self._small.host
        small["token_ids"].view(self.shape.batch, -1).copy_(filling.tokens(inputs.tokens))
        sample = {"state": inputs.state, "noise": inputs.noise}
        for name, value in sample.items():
            if value.device.type == "cpu":
                small[name].copy_(value)
        self._small.upload(LAST_OF_REQUEST if filling is before else None)
        for name, value in sample.items():
            if value.device.type != "cpu":
                self._small.device[name].copy_(value)
        filling.images(self._there(inputs.images), self._images)
        if self._uploaded is not None:
            self._uploaded.record()
        if self.recording is not None and (replan or lengths != self._lengths):
            for tokens in (self.prefix, self.suffix):
                tokens.replan() if self.recording.captured else tokens.forget_plans()
        self._filling, self._lengths = filling, lengths

    def serves(self, inputs: Inputs, steps: int) -> bool:
        """Whether this is the program of ``inputs`` because it was that of the last request, under the same masks."""
        return self._filling is not None and self.shape.steps == steps and self._filling.serves(inputs)

    def forget_plans(self) -> None:
        """Other kernels may be chosen at the next call."""
        self.prefix.forget_plans()
        self.suffix.forget_plans()

    def _tokens(self, part: str) -> Tokens:
        small = self._small.device
        metadata = {name: small[f"{part}.{name}"] for name in METADATA}
        return Tokens(small[f"{part}.positions"], small[f"{part}.slots"], metadata)

    def _there(self, images: torch.Tensor) -> torch.Tensor:
        """``images`` on the device. Nobody may wait for this request, so that the caller's own memory is done with
        when this returns."""
        device = self._images.device
        if device.type == "cpu" or images.device.type != "cpu":
            return images.to(device)
        return torch.empty_like(images, pin_memory=True).copy_(images).to(device, non_blocking=True)

    def _arranged(self, inputs: Inputs) -> tuple[Filling, list[int]]:
        """How ``inputs`` fill the buffers, and their valid prefix tokens. Under the masks of the last request, as a
        robot sends one after the other, its layout stands."""
        if self._filling is not None and self._filling.serves(inputs):
            return self._filling, self._lengths
        model = self.model
        filling = Filling.of(inputs, self.shape, drop_masked=model.savings.drop_masked)
        layout = make_layout(
            filling.camera_mask, filling.token_mask, filling.tokens(inputs.tokens),
            patches=model.config.vision.patches, segments=model.segments, page=model.page_size, drop_masked=False,
        )  # fmt: skip
        self._filling = None  # until all of this batch is in place
        self._write(layout)
        return filling, layout.prefix.metadata["last_page_len"].tolist()

    def _write(self, layout: Layout) -> None:
        small = self._small.host
        small["gather"].copy_(layout.gather)
        for part, tokens in (("prefix", layout.prefix), ("suffix", layout.suffix)):
            small[f"{part}.positions"].copy_(tokens.positions)
            small[f"{part}.slots"].copy_(tokens.slots)
            for name in METADATA:
                small[f"{part}.{name}"].copy_(tokens.metadata[name])

    # The stages

    def _vision(self) -> None:
        self._patches = self.model.embed_images(self._images.flatten(0, 1))

    def _fill(self) -> None:
        text = self.model.embed_tokens(self._small.device["token_ids"])
        rows = torch.cat([self._patches.to(text.dtype), text]).index_select(0, self._small.device["gather"])
        self.model.fill(rows, self.prefix, self.cache)

    def _expert(self) -> None:
        sample, steps = self._small.device, self.shape.steps
        self.actions.copy_(self.model.sample(sample["noise"], sample["state"], steps, self.suffix, self.cache))
