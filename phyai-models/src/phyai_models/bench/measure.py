"""The measurements of ``phyai bench``: a hosted π model in this process, and what it is compared with."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
from phyai.engine.decisions import decision_rows
from phyai.errors import InputError

from phyai_models.bench.baseline import TimeBoxError, make_baseline, plain_model, worst_cosine
from phyai_models.bench.floor import Case, Ceilings, floor_seconds, stages
from phyai_models.bench.tape import record_tape
from phyai_models.bench.timeline import Span, draw, totals
from phyai_models.bench.timing import Timing, measure_ceilings, time_device, time_wall
from phyai_models.bench.where import Row, by_kind, rows_of, spans_of, table
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import PiArgs, RandomCheckpoint, source_of
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.program import Program
from phyai_models.pi.requests import DeviceBatch, a_seed
from phyai_models.pi.runner import Runner
from phyai_models.runner import Recording, record

DEFAULT_BUCKETS = RuntimeConfig().prompt_buckets
BASELINES = ("torch", "sdpa", "compile")


@attrs.frozen
class Options:
    """What is measured. ``cameras`` and ``prompt`` (valid tokens) of each request are by default as many as the model
    takes, 200 tokens at most; ``baselines`` of :data:`BASELINES`; ``exact``: one recording per prompt length in place
    of buckets."""

    family: str
    weights: str | Path | RandomCheckpoint
    device: str = "auto"
    dtype: str = "bf16"
    cameras: int | None = None
    prompt: int | None = None
    batch: int = 1
    steps: int | None = None
    exact: bool = False
    runs: int = 50
    warmup: int = 10
    samples: int = 8
    baselines: tuple[str, ...] = ()
    compile_seconds: float = 240.0
    timeline: Path | None = None
    seed: int = attrs.field(default=0, validator=a_seed)


def measure(options: Options, *, policy: Any = None, catalog: Any = None, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the benchmark and return its record, plain data. ``say`` is told what is being done.

    Raises:
        InputError: more cameras or prompt tokens than the model takes.
    """
    gpu = options.device != "cpu" and torch.cuda.is_available()
    execution = "graph" if gpu else "static"
    buckets: tuple[int, ...] = () if options.exact else DEFAULT_BUCKETS
    runtime = RuntimeConfig(execution, buckets, max_batch=options.batch)  # type: ignore[arg-type]  # attrs' converter
    target = options.device if options.device != "auto" else ("cuda" if gpu else "cpu")
    config = EngineConfig(DeviceConfig(target, options.dtype), runtime=runtime)
    plugin_args = arguments(options)
    say("loading")
    with Engine(EngineArgs(options.family, plugin_args, config), policy=policy, catalog=catalog) as engine:
        return _Bench(options, engine, plugin_args, say).record()


def arguments(options: Options) -> PiArgs:
    """The plug-in's arguments; random weights get as many cameras as are measured."""
    if options.family == "pi05":
        from phyai_models.pi05 import PI05Args as Args
    else:
        from phyai_models.pi0 import PI0Args as Args  # type: ignore[assignment]
    weights = options.weights
    if isinstance(weights, RandomCheckpoint) and weights.config is None:
        weights = RandomCheckpoint(PiConfig.standard(options.family, cameras=options.cameras or 3), weights.seed)
    return Args(weights, num_steps=options.steps, seed=options.seed)


class _Bench:
    def __init__(self, options: Options, engine: Engine, args: PiArgs, say: Callable[[str], None]) -> None:
        self.options, self.engine, self.args, self.say = options, engine, args, say
        self.runner: Runner = engine.model.runner  # type: ignore[attr-defined]
        self.model, self.config, self.device = self.runner.model, self.runner.config, self.runner.model.device
        self.steps = options.steps or self.config.num_inference_steps
        self.generator = torch.Generator().manual_seed(options.seed)
        most_cameras, most_tokens = len(self.config.cameras), self.config.tokenizer_max_length
        self.cameras, self.prompt = options.cameras or most_cameras, options.prompt or min(200, most_tokens)
        if self.cameras > most_cameras or self.prompt > most_tokens:
            raise InputError(
                f"{self.cameras} cameras and {self.prompt} prompt tokens; this model takes "
                f"{most_cameras} and {most_tokens}"
            )

    def record(self) -> dict[str, Any]:
        options, config = self.options, self.config
        inputs = self.inputs()
        self.say("warming up and recording")
        program = self.runner.program(inputs, self.steps)
        program.load(inputs, replan=False)
        self.say("timing")
        ceilings = measure_ceilings(self.device, self.model.precision.towers)
        case = Case(config, self.cameras, self.prompt, options.batch, self.steps,
                    self.model.precision.towers.itemsize)  # fmt: skip
        work = stages(case, skip_last_layer=self.model.savings.skip_last_layer)
        floors = floor_seconds(work, ceilings)
        flops = {name: part.flops for name, part in work.items()}
        flops["total"] = sum(flops.values())
        recordings = self.stage_recordings(program)
        timings = {n: self.device_time(r.replay) for n, r in {**recordings, "total": _recorded(program)}.items()}
        result: dict[str, Any] = {
            "model": options.family, "device": self.device_name(), "torch": torch.__version__,
            "execution": self.runner.execution, "shape": str(self.runner.shape(inputs, self.steps)),
            "case": {
                "cameras": self.cameras, "prompt_tokens": self.prompt, "batch": options.batch,
                "steps": self.steps, "chunk": config.chunk_size, "dtype": options.dtype, "exact": options.exact,
                "weights": "random" if isinstance(options.weights, RandomCheckpoint) else str(options.weights),
            },
            "ceilings": {"tflops": ceilings.flops / 1e12, "tb_per_s": ceilings.bandwidth / 1e12},
            "stages": {
                name: {
                    **attrs.asdict(timing), "floor": floors[name] * 1e3,
                    "share_of_floor": floors[name] * 1e3 / timing.p50,
                    "gflop": flops[name] / 1e9,
                }
                for name, timing in timings.items()
            },
            "end_to_end": self.end_to_end(inputs),
            "memory": {**attrs.asdict(self.runner.memory()), "allocated": self.allocated()},
            "decisions": [row.to_json() for row in decision_rows(self.engine.dispatcher.report())],
        }  # fmt: skip
        self.profile(program, recordings, case, ceilings, result)
        if options.baselines:
            result["baselines"] = self.baselines(inputs, timings["total"])
        return result

    # Parts

    @torch.no_grad()
    def stage_recordings(self, program: Program) -> dict[str, Recording]:
        """A recording of every stage of ``program``, for timing each by itself."""
        if self.runner.execution != "graph":
            return {name: Recording(torch.no_grad()(stage)) for name, stage in program.stages.items()}
        pool = torch.cuda.graph_pool_handle()
        return {name: record(stage, self.engine.dispatcher, pool) for name, stage in program.stages.items()}

    def end_to_end(self, inputs: Inputs) -> dict[str, Any]:
        """What a caller waits for: from tensors on the host to actions there, the same while prompts change their
        length from request to request, and from tensors on the device to actions there."""
        shorter = self.shorter(inputs)
        both = [inputs, shorter]
        on_device = DeviceBatch(
            inputs.images.to(self.device), inputs.tokens, inputs.noise.to(self.device), inputs.token_mask,
            inputs.camera_mask, inputs.state, self.steps,
        )  # fmt: skip
        asked = iter(range(1 << 30))
        results = {
            "host_to_host": self.wall_time(lambda: self.runner(inputs, self.steps)),
            "device_to_device": self.wall_time(lambda: self.engine.step(on_device)),
        }
        if self.runner.shape(shorter, self.steps) == self.runner.shape(inputs, self.steps):
            changing = self.wall_time(lambda: self.runner(both[next(asked) % 2], self.steps))
            results["host_to_host_changing_lengths"] = changing
        return {name: attrs.asdict(timing) for name, timing in results.items()}

    @torch.no_grad()
    def profile(
        self, program: Program, recordings: dict[str, Recording], case: Case, ceilings: Ceilings, result: dict[str, Any]
    ) -> None:
        """Add to every stage of ``result`` where its time goes: by kernel, by site, by kind."""
        spans: dict[str, list[Span]] = {}
        for name, stage in program.stages.items():
            self.say(f"profiling: {name}")
            tape = record_tape(stage, self.engine.dispatcher)
            each, spans[name], in_place = spans_of(tape, recordings[name].replay, self.device)
            rows: list[Row] = rows_of(tape, each, case, ceilings)
            record, busy = result["stages"][name], sum(span.length for span in spans[name]) / 1e3
            record["kernels"] = len(spans[name])
            record["kernel_ms"] = busy
            record["gap_ms"] = record["p50"] - busy
            record["by_kind"] = by_kind(tape, each, rows)
            record["by_site"] = {"timed": "in the graph" if in_place else "call by call", **table(rows)}
            record["by_kernel"] = {"columns": ("name", "launches", "us"), "rows": totals(spans[name])}
        if self.options.timeline is not None:
            given, total = result["case"], result["stages"]["total"]["p50"]
            what = f"{given['cameras']} cameras, {given['prompt_tokens']} prompt tokens, batch {given['batch']}"
            draw(spans, self.options.timeline, f"{result['model']} on {result['device']}: {what}; {total:.2f} ms")

    def baselines(self, inputs: Inputs, total: Timing) -> dict[str, Any]:
        batches = [self.inputs() for _ in range(-(-self.options.samples // self.options.batch))]
        got = torch.cat([self.runner(batch, self.steps) for batch in batches])
        noise = torch.cat([batch.noise for batch in batches])
        found: dict[str, Any] = {}
        for name in self.options.baselines:
            self.say(f"baseline: {name}")
            source = source_of(self.args, self.engine.host.catalog.importers)
            plain = plain_model(self.model, source, self.model.precision.towers, sdpa=name != "torch")
            seconds = self.options.compile_seconds if name == "compile" else None
            try:
                baseline = make_baseline(plain, inputs, self.steps, compile_seconds=seconds)
            except TimeBoxError as error:
                found[name] = {"problem": str(error)}
                continue
            timing = self.device_time(baseline.run)
            want = torch.cat([baseline(batch) for batch in batches])
            found[name] = {
                **attrs.asdict(timing), "times_faster": timing.p50 / total.p50, "samples": len(got),
                "worst_cosine": worst_cosine(got, want),
                "worst_cosine_without_noise": worst_cosine(got - noise, want - noise),
            }  # fmt: skip
            del plain, baseline
        return found

    # Inputs

    def inputs(self) -> Inputs:
        """A random batch."""
        options, config, g = self.options, self.config, self.generator
        size, batch = config.vision.image_size, options.batch
        return Inputs(
            images=torch.rand(batch, self.cameras, 3, size, size, generator=g) * 2 - 1,
            camera_mask=torch.ones(batch, self.cameras, dtype=torch.bool),
            tokens=torch.randint(0, config.vocab_size, (batch, self.prompt), generator=g),
            token_mask=torch.ones(batch, self.prompt, dtype=torch.bool),
            state=torch.rand(batch, config.max_state_dim, generator=g) * 2 - 1,
            noise=torch.randn(batch, config.chunk_size, config.max_action_dim, generator=g),
        )

    def shorter(self, inputs: Inputs) -> Inputs:
        """The same with one prompt token less."""
        mask = inputs.token_mask.clone()
        mask[:, -1] = inputs.token_mask.shape[1] == 1
        return attrs.evolve(inputs, token_mask=mask)

    # The device

    def device_time(self, work: Callable[[], object]) -> Timing:
        return time_device(work, self.device, warmup=self.options.warmup, runs=self.options.runs)

    def wall_time(self, work: Callable[[], object]) -> Timing:
        return time_wall(work, self.device, warmup=self.options.warmup, runs=self.options.runs)

    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine()

    def allocated(self) -> int | None:
        """Bytes that torch has allocated on a GPU."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None


def _recorded(program: Program) -> Recording:
    assert program.recording is not None  # Runner.program records it
    return program.recording
