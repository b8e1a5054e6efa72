"""Runs a π model on batches: launched kernel by kernel at their own lengths, or recorded once and replayed."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import AbstractContextManager

import torch
from phyai.engine import RuntimeConfig
from phyai.errors import InputError

from phyai_models.layers import KVCache
from phyai_models.pi.bucketed import Shape, cameras_needed, needs
from phyai_models.pi.config import PiConfig
from phyai_models.pi.eager import actions_of
from phyai_models.pi.inputs import Inputs, blank_images
from phyai_models.pi.model import PiModel
from phyai_models.pi.program import Program
from phyai_models.pi.vision_program import VisionProgram
from phyai_models.processors.checks import Checks
from phyai_models.runner import Aside, MemoryReport, Warmer, bucket_of, buckets_up_to, memory_errors

RECORD_LESS = "use fewer or smaller graphs (RuntimeConfig.max_graphs, prompt_buckets, max_batch)"


class Runner:
    """Inference with one model, as its :class:`phyai.engine.RuntimeConfig` says.

    Keeps one cache of keys and values, and the most recently used recordings. Its calls are made one at a time.
    """

    def __init__(self, model: PiModel, config: PiConfig, runtime: RuntimeConfig | None = None) -> None:
        self.model = model
        self.config = config
        self.runtime = runtime or RuntimeConfig()
        self.execution = execution_on(model.device, self.runtime)
        self.buckets = buckets_up_to(config.tokenizer_max_length, self.runtime.prompt_buckets)
        self.warmer = Warmer(model.dispatcher, model.device, graphs=self.execution == "graph")
        self._programs: OrderedDict[Shape, Program] = OrderedDict()
        self._visions: dict[tuple[int, int], VisionProgram] = {}
        self._aside = Aside(model.device)
        self._last: Program | None = None
        self._cache: KVCache | None = None
        self._steps = config.num_inference_steps

    def __call__(
        self,
        inputs: Inputs,
        steps: int,
        stages: dict[str, torch.Tensor] | None = None,
        *,
        seen: VisionProgram | None = None,
        checks: Checks | None = None,
    ) -> torch.Tensor:
        """Actions ``[B, chunk_size, max_action_dim]``, float32, on the CPU. ``seen`` is what :meth:`look` gave for the
        images of ``inputs``. ``checks`` are made while a GPU computes.

        ``stages``, when given, receives what every stage computed, float32, under the names
        ``vision.camN``, ``prefix.embeds``, ``prefix.pad_mask``, ``stepNN.x`` and ``stepNN.v``; then the batch is
        launched kernel by kernel.

        Raises:
            InputError: the batch is larger than the runtime configuration allows, or has no recording and may not
                have one; or a check failed.
            DeviceMemoryError: the device's memory does not suffice.
        """
        actions = self.run(inputs, steps, stages, seen=seen)
        answer = actions.to("cpu", torch.float32, non_blocking=True)
        if checks is not None:
            checks.make()
        if actions.device.type == "cuda":
            torch.cuda.current_stream(actions.device).synchronize()
        return answer.clone()  # neither what the next call overwrites nor pinned memory is for the caller to keep

    @torch.no_grad()
    def run(
        self,
        inputs: Inputs,
        steps: int,
        stages: dict[str, torch.Tensor] | None = None,
        *,
        seen: VisionProgram | None = None,
    ) -> torch.Tensor:
        """The same, on the model's device, without waiting for it. The tensor is overwritten by the next call."""
        if inputs.batch > self.runtime.max_batch:
            raise InputError(
                f"a batch of {inputs.batch} requests; this engine takes {self.runtime.max_batch} at a time "
                "(RuntimeConfig.max_batch)"
            )
        if stages is not None or self.execution == "eager":
            self.warmer.open()
            shape = Shape(inputs.batch, *needs(inputs, drop_masked=self.model.savings.drop_masked), steps)
            with self._memory_errors(f"a request of {shape}", shape, "ask for fewer requests at once"):
                return actions_of(self.model, inputs, steps, self.cache, stages)
        program = self._program(inputs, steps)
        if program.vision is not seen:
            self._see(program.vision, inputs.images, inputs.camera_mask)
        with self._aside.beside():
            program.load_prompt(inputs, replan=program is not self._last)
        self._last = program
        assert program.rest is not None
        program.rest.replay()
        return program.actions

    def images(self, camera_mask: torch.Tensor) -> torch.Tensor:
        """Memory on the device for the images of a request: ``[B, C, 3, S, S]``, float32. Where a recording reads
        them all, it is where it does, and they need not be copied there: they are for the next call alone."""
        vision = self._vision(camera_mask)
        if vision is not None and vision.images.shape[:2] == camera_mask.shape and bool(camera_mask.all()):
            return vision.images
        return blank_images(camera_mask, self.config, self.model.device)

    @torch.no_grad()
    def look(self, images: torch.Tensor, camera_mask: torch.Tensor) -> VisionProgram | None:
        """Start on the images of a request, as :class:`Inputs` has them, before its prompt is there: :meth:`run` goes
        on from what this returns. None where nothing is recorded for as many, and nothing is started.

        ``run``, or another ``look``, comes next: what it gives to the device comes behind what was given to it before
        this, and beside this.
        """
        vision = self._vision(camera_mask)
        if vision is not None:
            self._see(vision, images, camera_mask)
        return vision

    def _vision(self, camera_mask: torch.Tensor) -> VisionProgram | None:
        """The recording that a request with such cameras would be looked at with, if there is one."""
        if self.execution == "eager":
            return None
        self._outdated()
        if self._last is not None and self._last.vision.serves(camera_mask):
            return self._last.vision
        batch, cameras = camera_mask.shape[0], cameras_needed(camera_mask, drop_masked=self.model.savings.drop_masked)
        most = cameras if self.runtime.new_graphs else len(self.config.cameras)
        held = (self._visions.get((batch, count)) for count in range(cameras, most + 1))
        return next((vision for vision in held if vision is not None), None)

    def _see(self, vision: VisionProgram, images: torch.Tensor, camera_mask: torch.Tensor) -> None:
        vision.load(images, camera_mask)
        self._aside.fork()
        assert vision.recording is not None
        vision.recording.replay()

    # Recordings

    @torch.no_grad()
    def program(self, inputs: Inputs, steps: int) -> Program:
        """The recording that serves ``inputs``, made now if there is none."""
        return self._program(inputs, steps)

    def _program(self, inputs: Inputs, steps: int) -> Program:
        self._outdated()
        if self._last is not None and self._last.serves(inputs, steps):
            self._programs.move_to_end(self._last.shape)
            return self._last
        shape = self.shape(inputs, steps)
        if shape not in self._programs and not self.runtime.new_graphs:
            if not self._programs:  # the policy was replaced
                self.record_all(self._steps)
            shape = self._captured(shape)
        if shape not in self._programs:
            self._record(shape, inputs)
        self._programs.move_to_end(shape)
        return self._programs[shape]

    def shape(self, inputs: Inputs, steps: int) -> Shape:
        """The bucket of ``inputs``."""
        cameras, tokens = needs(inputs, drop_masked=self.model.savings.drop_masked)
        if tokens > self.buckets[-1]:
            raise InputError(f"{tokens} token slots; with drop_masked off at most {self.buckets[-1]} fit")
        if not self.runtime.prompt_buckets:
            lengths = inputs.camera_mask.sum(1) * self.config.vision.patches + inputs.token_mask.sum(1)
            return Shape(inputs.batch, cameras, tokens, steps, tuple(lengths.tolist()))
        return Shape(inputs.batch, cameras, bucket_of(tokens, self.buckets), steps)

    @torch.no_grad()
    def record_all(self, steps: int) -> None:
        """Record every bucket for single requests with all cameras: all there will be without ``new_graphs``."""
        self._steps = steps
        requests = [_blank(self.config, prompt) for prompt in self.buckets]
        shapes = [self.shape(inputs, steps) for inputs in requests]
        with self._memory_errors(f"compiling ahead for {shapes[-1]}", shapes[-1], RECORD_LESS):
            self.model.dispatcher.compile_ahead()
        for shape, inputs in zip(shapes, requests, strict=True):
            self._record(shape, inputs)

    @property
    def cache(self) -> KVCache:
        """The cache, made when it is first needed."""
        if self._cache is None:
            self._cache = self.model.new_cache()
        return self._cache

    def memory(self) -> MemoryReport:
        """What lies on the device now."""
        parts: list[Program | VisionProgram] = [*self._programs.values(), *self._visions.values()]
        recordings = [*(p.rest for p in self._programs.values()), *(v.recording for v in self._visions.values())]
        return MemoryReport(
            parameters=self.model.parameter_bytes(),
            cache=0 if self._cache is None else self._cache.nbytes,
            buffers=sum(part.nbytes for part in parts),
            graphs=sum(recording.nbytes for recording in recordings if recording is not None),
            recordings=len(self._programs),
        )

    def _captured(self, shape: Shape) -> Shape:
        """The smallest recorded shape that serves ``shape``."""
        fitting = sorted((s for s in self._programs if s.fits(shape)), key=lambda s: (s.cameras, s.prompt))
        if not fitting:
            held = "; ".join(map(str, self._programs))
            raise InputError(
                f"no recording serves {shape}; there are: {held}. Set RuntimeConfig.new_graphs to have one made when "
                "it is first asked for"
            )
        return fitting[0]

    def _record(self, shape: Shape, inputs: Inputs) -> None:
        if len(self._programs) >= self.runtime.max_graphs and self.runtime.new_graphs:
            _, oldest = self._programs.popitem(last=False)
            if oldest is self._last:
                self._last = None
            held = {(s.batch, s.cameras) for s in (shape, *self._programs)}
            self._visions = {key: vision for key, vision in self._visions.items() if key in held}
        with self._memory_errors(f"a recording for {shape}", shape, RECORD_LESS):
            program = self._recorded(shape, inputs)
            while self._outdated():  # a kernel failed, and vision was recorded before it did
                program = self._recorded(shape, inputs)
        self._programs[shape] = program
        self._last = program

    def _recorded(self, shape: Shape, inputs: Inputs) -> Program:
        vision = self._vision_recorded(shape, inputs)
        program = Program(self.model, shape, self.cache, vision)

        def prepare() -> None:
            program.forget_plans()
            program.load_prompt(inputs, replan=False)

        program.rest = self.warmer.record(program.compute_rest, prepare)
        return program

    def _vision_recorded(self, shape: Shape, inputs: Inputs) -> VisionProgram:
        key = shape.batch, shape.cameras
        if key not in self._visions:
            vision = VisionProgram(self.model, *key)
            vision.recording = self.warmer.record(
                vision.compute, lambda: vision.load(inputs.images, inputs.camera_mask)
            )
            self._outdated()
            self._visions[key] = vision
        return self._visions[key]

    def _memory_errors(self, what: str, shape: Shape, advice: str) -> AbstractContextManager[None]:
        needed = self.model.recording_bytes(shape.batch, shape.cameras, shape.prompt)
        return memory_errors(self.model.device, what, needed, advice, self._let_go)

    def _outdated(self) -> bool:
        """Whether what was recorded is out of date; then nothing of it is held any more."""
        if self.warmer.current():
            return False
        self._drop_programs()
        return True

    def _drop_programs(self) -> None:
        self._programs.clear()
        self._visions.clear()
        self._last = None

    def _let_go(self) -> None:
        """Hold no memory beside the model's."""
        self._drop_programs()
        self._cache = None


def execution_on(device: torch.device, runtime: RuntimeConfig) -> str:
    """``eager``, ``static`` or ``graph``.

    Raises:
        InputError: graphs are asked for on a CPU.
    """
    on_gpu = device.type == "cuda"
    if runtime.execution == "graph" and not on_gpu:
        raise InputError("RuntimeConfig.execution='graph' needs a GPU; on a CPU use auto, eager or static")
    if runtime.execution == "auto":
        return "graph" if on_gpu else "eager"
    return runtime.execution


def _blank(config: PiConfig, prompt: int) -> Inputs:
    """A request of blank images and the token 0, for which a recording can be made."""
    size, cameras = config.vision.image_size, len(config.cameras)
    return Inputs(
        images=torch.full((1, cameras, 3, size, size), -1.0),
        camera_mask=torch.ones(1, cameras, dtype=torch.bool),
        tokens=torch.zeros(1, prompt, dtype=torch.int64),
        token_mask=torch.ones(1, prompt, dtype=torch.bool),
        state=torch.zeros(1, config.max_state_dim),
        noise=torch.zeros(1, config.chunk_size, config.max_action_dim),
    )
