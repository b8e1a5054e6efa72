"""The measurements of ``phyai bench``: a hosted π model in this process, and what it is compared with."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from phyai.engine import DeviceConfig, Engine, EngineArgs, EngineConfig, RuntimeConfig
from phyai.engine.decisions import decision_rows
from phyai.errors import InputError
from phyai.facts import canonical_dtype

from phyai_models.bench.baseline import BaselineError, make_baseline, plain_model, worst_cosine
from phyai_models.bench.ceilings import measure_ceilings
from phyai_models.bench.floor import Case, Ceilings, Work, floor_seconds
from phyai_models.bench.made_up import in_lerobots_names, random_inputs
from phyai_models.bench.timeline import draw
from phyai_models.bench.timing import Timing, time_device, time_wall
from phyai_models.bench.where import StageProfile, profile_stage
from phyai_models.bench.words import ceilings_in_words, floor_in_words
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import PiArgs, RandomCheckpoint, source_of
from phyai_models.pi.inputs import Inputs
from phyai_models.pi.program import Program
from phyai_models.pi.requests import DeviceBatch, a_seed
from phyai_models.pi.runner import Runner
from phyai_models.runner import Recording, record

DEFAULT_BUCKETS = RuntimeConfig().prompt_buckets
BASELINES = ("torch", "sdpa", "compile")
COMPILE_SECONDS = 240.0


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
    compile_seconds: float = COMPILE_SECONDS
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
    made = EngineArgs(options.family, plugin_args, config)
    with Engine(made, policy=policy, catalog=catalog) as engine, engine.host.current():
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
        with self.engine.dispatcher.telling_together():
            program = self.runner.program(inputs, self.steps)
        program.load(inputs, replan=False)
        memory = {**attrs.asdict(self.runner.memory()), **self.held()}
        self.say("timing")
        recordings = self.stage_recordings(program)
        timings = {n: self.device_time(r.replay) for n, r in {**recordings, "total": _recorded(program)}.items()}
        end_to_end = self.end_to_end(inputs)
        profiles = self.profiles(program, recordings)
        self.say("measuring ceilings")
        ceilings = measure_ceilings(self.device, set().union(*(profile.types() for profile in profiles.values())))
        result: dict[str, Any] = {
            "model": options.family, "device": self.device_name(), "torch": torch.__version__,
            "execution": self.runner.execution, "shape": str(self.runner.shape(inputs, self.steps)),
            "case": {
                "cameras": self.cameras, "prompt_tokens": self.prompt, "batch": options.batch,
                "steps": self.steps, "chunk": config.chunk_size, "dtype": options.dtype, "exact": options.exact,
                "weights": "random" if isinstance(options.weights, RandomCheckpoint) else str(options.weights),
            },
            "ceilings": {
                "tflops": {dtype: rate / 1e12 for dtype, rate in ceilings.flops.items()},
                "tb_per_s": ceilings.bandwidth / 1e12, "not_measured": dict(ceilings.unknown),
            },
            "stages": _stages(timings, profiles, ceilings),
            "end_to_end": end_to_end,
            "memory": memory,
            "decisions": [row.to_json() for row in decision_rows(self.engine.dispatcher.report())],
        }  # fmt: skip
        if options.timeline is not None:
            self.draw(profiles, result, options.timeline)
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
        """What a caller of ``engine.step`` waits for: from images and tokens on the host to actions there, the same
        with images of uint8 and while prompts change their length from request to request, and from tensors on the
        device to actions there."""
        shorter = self.shorter(inputs)
        both = [in_lerobots_names(each, self.config, self.steps) for each in (inputs, shorter)]
        of_bytes = in_lerobots_names(inputs, self.config, self.steps, bytes_=True)
        on_device = DeviceBatch(
            inputs.images.to(self.device), inputs.tokens, inputs.noise.to(self.device), inputs.token_mask,
            inputs.camera_mask, inputs.state, self.steps,
        )  # fmt: skip
        asked = iter(range(1 << 30))
        results = {
            "host_to_host": self.wall_time(lambda: self.engine.step(both[0])),
            "host_to_host_uint8": self.wall_time(lambda: self.engine.step(of_bytes)),
            "device_to_device": self.wall_time(lambda: self.engine.step(on_device)),
        }
        if self.runner.shape(shorter, self.steps) == self.runner.shape(inputs, self.steps):
            changing = self.wall_time(lambda: self.engine.step(both[next(asked) % 2]))
            results["host_to_host_changing_lengths"] = changing
        return {name: attrs.asdict(timing) for name, timing in results.items()}

    @torch.no_grad()
    def profiles(self, program: Program, recordings: Mapping[str, Recording]) -> dict[str, StageProfile]:
        """Where the time of every stage goes."""
        dtype = canonical_dtype(str(self.model.precision.towers))
        case = Case(self.config, self.cameras, self.prompt, self.options.batch, self.steps, dtype)
        found = {}
        for name, stage in program.stages.items():
            self.say(f"profiling: {name}")
            replay, dispatcher = recordings[name].replay, self.engine.dispatcher
            found[name] = profile_stage(stage, replay, dispatcher, self.device, case)
        return found

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
            except BaselineError as error:
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

    def draw(self, profiles: Mapping[str, StageProfile], result: Mapping[str, Any], path: Path) -> None:
        given, stages = result["case"], result["stages"]
        what = f"{given['cameras']} cameras, {given['prompt_tokens']} prompt tokens, batch {given['batch']}"
        title = f"{result['model']} on {result['device']}: {what}; {stages['total']['p50']:.2f} ms"
        draw(
            {name: profile.spans for name, profile in profiles.items()}, path,
            f"{title}\nceilings: {ceilings_in_words(result['ceilings'])}",
            {name: floor_in_words(stages[name], result["ceilings"]) for name in profiles},
        )  # fmt: skip

    # Inputs

    def inputs(self) -> Inputs:
        """A random batch."""
        sizes = {"batch": self.options.batch, "cameras": self.cameras, "prompt": self.prompt}
        return random_inputs(self.config, self.generator, **sizes)

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

    def held(self) -> dict[str, int | None]:
        """Bytes that torch has allocated on a GPU, what kernels keep for themselves included, and what it has reserved,
        where results inside graphs lie as well."""
        if self.device.type != "cuda":
            return {"allocated": None, "reserved": None}
        torch.cuda.empty_cache()
        counted = {"allocated": torch.cuda.memory_allocated, "reserved": torch.cuda.memory_reserved}
        return {name: count(self.device) for name, count in counted.items()}


def _recorded(program: Program) -> Recording:
    assert program.recording is not None  # Runner.program records it
    return program.recording


def _stages(
    timings: Mapping[str, Timing], profiles: Mapping[str, StageProfile], ceilings: Ceilings
) -> dict[str, dict[str, Any]]:
    """Every stage and their total: times, the least that they do, the floor, and where the time goes."""
    works = {name: profile.work for name, profile in profiles.items()}
    floors = floor_seconds(works, ceilings)
    works["total"] = sum(works.values(), Work())
    limits = {name: works[name].limits(ceilings) for name in profiles}
    limits["total"] = tuple(dict.fromkeys(each for stage in limits.values() for each in stage))
    found = {}
    for name, timing in timings.items():
        floor = floors[name]
        found[name] = {
            **attrs.asdict(timing),
            "floor": None if floor is None else floor * 1e3,
            "share_of_floor": None if floor is None else floor * 1e3 / timing.p50,
            "ceilings": limits[name],
            "gflop": works[name].operations / 1e9,
            "gflop_by_type": {dtype: count / 1e9 for dtype, count in works[name].flops.items()},
            **(profiles[name].record(ceilings, timing.p50) if name in profiles else {}),
        }
    return found
