"""A π model as an engine hosts it: its arguments and its answers."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.engine import Host
from phyai.errors import DeviceMemoryError, InputError
from phyai.quant.importers import Importer

from phyai_models.pi.config import PiConfig
from phyai_models.pi.inputs import (
    NOISE,
    Observation,
    camera_images,
    check_tokens,
    lerobot_cameras,
    lerobot_images,
    lerobot_inputs,
    small_on_host,
)
from phyai_models.pi.loading import load_model, open_source, renew, require_forms, require_renewable
from phyai_models.pi.model import Savings
from phyai_models.pi.processor import Processor
from phyai_models.pi.requests import (
    ActionChunk,
    BatchResult,
    DeviceBatch,
    LerobotBatch,
    NewWeights,
    a_number_of_steps,
    a_seed,
)
from phyai_models.pi.runner import Runner, execution_on
from phyai_models.processors.checks import Checks
from phyai_models.runner import give_back
from phyai_models.weights import Checkpoint, RandomSource, WeightSource

__all__ = ["ActionChunk", "DeviceBatch", "HostedPi", "LerobotBatch", "NewWeights", "PiArgs", "RandomCheckpoint"]


@attrs.frozen
class RandomCheckpoint:
    """Random weights in place of a checkpoint's, drawn on the engine's device: for benchmarks.

    ``config`` None is the published architecture. There are no processor files, so the engine takes batches and no
    :class:`Observation`.
    """

    config: PiConfig | None = None
    seed: int = attrs.field(default=0, validator=a_seed)


@attrs.frozen
class PiArgs:
    """Arguments of a π model.

    ``checkpoint_dir`` holds ``config.json`` and the weights, and for :class:`Observation` requests the processor
    files and the tokenizer; a :class:`RandomCheckpoint` stands for one. ``num_steps`` replaces the checkpoint's number
    of Euler steps. ``seed`` makes the noise that requests do not bring reproducible. ``truncate_prompt`` cuts prompts
    that are too long instead of refusing them. ``savings`` turns exact savings off, to compare. ``progress`` is called
    with (bytes read, bytes in all) while the weights are loaded.
    """

    checkpoint_dir: str | Path | RandomCheckpoint
    num_steps: int | None = attrs.field(default=None, validator=a_number_of_steps)
    seed: int | None = attrs.field(default=None, validator=a_seed)
    truncate_prompt: bool = False
    savings: Savings = attrs.field(factory=Savings)
    progress: Any = None


class HostedPi:
    """Answers :class:`Observation` with :class:`ActionChunk`, a list of them with a list (one batch),
    :class:`LerobotBatch` with :class:`BatchResult`, :class:`DeviceBatch` with the actions as a tensor on the device,
    and :class:`NewWeights` with None.

    A caller's inference mode ends here: memory that is allocated in it can be written to in it alone.
    """

    @torch.inference_mode(False)
    def __init__(self, family: str, args: PiArgs, host: Host) -> None:
        device, runtime = torch.device(host.device), host.config.runtime
        execution = execution_on(device, runtime)
        self.family, self.args, self._importers = family, args, host.catalog.importers
        self.config, directory, source = _open(family, args, self._importers)
        self.runner: Runner | None = Runner(
            load_model(
                source,
                self.config,
                host.dispatcher,
                device=host.device,
                params_dtype=host.config.device.params_dtype,
                savings=args.savings,
                capture=execution == "graph",
                fixed_lengths=execution != "eager" and not runtime.prompt_buckets,
                max_batch=runtime.max_batch,
            ),
            self.config,
            runtime,
        )
        self.processor = Processor(directory, self.config, truncate_prompt=args.truncate_prompt)
        self._generator = torch.Generator()
        if args.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(args.seed)
        self._mixed = False
        if execution != "eager" and not runtime.new_graphs:
            try:
                self.runner.record_all(self._steps(None))
            except DeviceMemoryError as error:
                traceback.clear_frames(error.__traceback__)  # they hold the model
                self.close()
                host.dispatcher.release()
                give_back(device)
                raise

    @torch.inference_mode(False)
    def step(self, request: Any) -> Any:
        """Answer one request; see the class. One that is not answered takes no noise from the next.

        Raises:
            InputError: the request does not fit the model.
        """
        noise = self._generator.get_state()
        try:
            return self._answer(request)
        except BaseException:
            self._generator.set_state(noise)
            raise

    def _answer(self, request: Any) -> Any:
        if isinstance(request, NewWeights):
            return self._renew(request)
        if self._mixed:
            raise InputError(
                "new weights were refused half-way, so old and new ones are mixed; give others, whole ones"
            )
        if isinstance(request, LerobotBatch):
            return self._batch(request)
        if isinstance(request, DeviceBatch):
            return self._on_device(request)
        if isinstance(request, Observation):
            return self._observations([request])[0]
        if isinstance(request, Sequence) and request and all(isinstance(o, Observation) for o in request):
            return self._observations(request)
        raise InputError(
            f"a request of type {type(request).__name__}; give an Observation, a list of them, a LerobotBatch, a "
            "DeviceBatch or NewWeights"
        )

    def close(self) -> None:
        self.runner = None

    @property
    def _running(self) -> Runner:
        assert self.runner is not None  # the engine calls a closed model no more
        return self.runner

    def _observations(self, observations: Sequence[Observation]) -> list[ActionChunk]:
        runner, processor = self._running, self.processor
        checks = Checks(runner.model.device)
        camera_mask, given = processor.cameras(observations)
        images = runner.images(camera_mask)
        camera_images(given, images, checks)
        seen = runner.look(images, camera_mask)
        inputs = processor.inputs(observations, images, camera_mask, self._noise(len(observations)))
        _ = processor.action_normalizer  # a missing file is said before the work, not after
        chunk = runner(inputs, self._steps(None), seen=seen, checks=checks)
        return [ActionChunk(actions) for actions in processor.actions(chunk, observations)]

    def _on_device(self, request: DeviceBatch) -> torch.Tensor:
        runner, inputs = self._running, request.inputs(self.config)
        seen = runner.look(inputs.images, inputs.camera_mask)
        check_tokens(inputs.tokens, inputs.token_mask, self.config)
        return runner.run(inputs, self._steps(request.num_steps), seen=seen)

    def _batch(self, request: LerobotBatch) -> BatchResult:
        runner, tensors = self._running, request.tensors
        checks, camera_mask = Checks(runner.model.device), lerobot_cameras(tensors, self.config)
        small = small_on_host(tensors)
        images = runner.images(camera_mask)
        lerobot_images(tensors, self.config, images, checks)
        seen = None if request.trace else runner.look(images, camera_mask)
        noise = None if NOISE in tensors else self._noise(len(images))
        inputs = lerobot_inputs(small, self.config, images, camera_mask, noise)
        stages: dict[str, torch.Tensor] = {}
        given = stages if request.trace else None
        chunk = runner(inputs, self._steps(request.num_steps), given, seen=seen, checks=checks)
        whole = self.config.action_dim == chunk.shape[-1]
        return BatchResult(chunk if whole else chunk[..., : self.config.action_dim].contiguous(), stages)

    @torch.no_grad()
    def _renew(self, request: NewWeights) -> None:
        model = self._running.model
        require_renewable(model)
        source = _source(request.checkpoint_dir, self.args, self._importers)
        source.require(model.tensors())
        unnoticed = attrs.evolve(self.args, progress=None)  # what is read twice counts once
        require_forms(model, _source(request.checkpoint_dir, unnoticed, self._importers))
        self._mixed = True
        renew(model, source)
        self._mixed = False

    def _steps(self, asked: int | None) -> int:
        return asked or self.args.num_steps or self.config.num_inference_steps

    def _noise(self, batch: int) -> torch.Tensor:
        shape = (batch, self.config.chunk_size, self.config.max_action_dim)
        return torch.randn(shape, generator=self._generator)


def _open(family: str, args: PiArgs, importers: Sequence[Importer]) -> tuple[PiConfig, Path, WeightSource]:
    """The configuration, the directory of the processor files, and the weights."""
    given = args.checkpoint_dir
    if isinstance(given, RandomCheckpoint):
        config = given.config or PiConfig.standard(family)
        return config, Path(f"{family} with random weights"), _source(given, args)
    directory = Path(given)
    return PiConfig.load(directory, family), directory, _source(directory, args, importers)


def source_of(args: PiArgs, importers: Sequence[Importer] = ()) -> WeightSource:
    """The weights that ``args`` name, to be read once more."""
    return _source(args.checkpoint_dir, args, importers)


def _source(given: str | Path | RandomCheckpoint, args: PiArgs, importers: Sequence[Importer] = ()) -> WeightSource:
    if isinstance(given, RandomCheckpoint):
        return RandomSource(given.seed)
    checkpoint = Checkpoint.open(given)
    total = sum(info.end - info.begin for info in checkpoint.tensors.values())
    read = 0

    def progress(count: int) -> None:
        nonlocal read
        read += count
        if args.progress is not None:
            args.progress(read, total)

    return open_source(checkpoint, progress, importers)
