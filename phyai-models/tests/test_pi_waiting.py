"""What a caller waits for: images are started on before the prompt is there, values are judged while a GPU computes."""

import math

import attrs
import numpy as np
import pytest
import torch
from phyai.dispatch import Site
from phyai.engine import RuntimeConfig
from phyai.errors import InputError
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import LerobotBatch
from phyai_models.pi.inputs import TOKENS, finite
from phyai_models.pi.program import Program
from phyai_models.pi.vision_program import VisionProgram
from phyai_models.processors.checks import Checks
from phyai_models.processors.images import place_images, preprocess
from phyai_models.runner import Mirror
from pi_cases import engine, inputs_of, random_batch, random_checkpoint, relative_error

STATIC = RuntimeConfig("static", prompt_buckets=(4, 8))
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def actions(running, batch, **how):
    return running.step(LerobotBatch(batch, **how)).actions


@pytest.fixture
def noted(monkeypatch):
    """What runs, in its order."""
    names = []

    def note(owner, name):
        original = getattr(owner, name)

        def run(self, *given, **named):
            names.append(f"{owner.__name__}.{name}")
            return original(self, *given, **named)

        monkeypatch.setattr(owner, name, run)

    note(VisionProgram, "compute")
    note(Program, "load_prompt")
    note(Program, "compute_rest")
    return names


def test_the_images_are_looked_at_before_the_prompt_is_made_ready(tmp_path, catalog, noted):
    directory = random_checkpoint(tmp_path, "pi05")
    batch = random_batch(directory, batch=1, tokens=3)
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        actions(running, batch)
        noted.clear()
        actions(running, batch)
        assert noted == ["VisionProgram.compute", "Program.load_prompt", "Program.compute_rest"]
        noted.clear()
        actions(running, batch, trace=True)
        assert not noted, "a trace is launched kernel by kernel"


def test_what_a_batch_has_beside_images_is_fetched_before_they_are_looked_at(tmp_path, catalog, noted, monkeypatch):
    """From a GPU it would arrive behind all that was given to it before."""
    from phyai_models.pi import hosted

    directory = random_checkpoint(tmp_path, "pi05")
    batch, fetch = random_batch(directory, batch=1, tokens=3), hosted.small_on_host
    monkeypatch.setattr(hosted, "small_on_host", lambda given: [noted.append("fetch"), fetch(given)][1])
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        actions(running, batch)
        noted.clear()
        actions(running, batch)
        assert noted == ["fetch", "VisionProgram.compute", "Program.load_prompt", "Program.compute_rest"]


def test_prompts_of_all_lengths_share_what_looks_at_as_many_images(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    runtime = attrs.evolve(STATIC, max_graphs=2)
    with engine(directory, catalog=catalog, runtime=runtime) as running:
        runner = running.model.runner
        for tokens, present in ((3, 3), (7, 3)):
            actions(running, random_batch(directory, batch=1, tokens=tokens, present=present))
        first, second = runner._programs.values()
        assert first.vision is second.vision
        actions(running, random_batch(directory, batch=1, tokens=3, present=2))
        assert sorted(runner._visions) == [(1, 2), (1, 3)]
        actions(running, random_batch(directory, batch=1, tokens=7, present=2))
        assert list(runner._visions) == [(1, 2)], "none is left of graphs that went"


def test_a_request_refused_after_its_images_were_looked_at_leaves_nothing_behind(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    one, other = (random_batch(directory, batch=1, tokens=3, seed=seed) for seed in range(2))
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        want = [actions(running, batch) for batch in (one, other)]
        assert not torch.equal(*want)
        with pytest.raises(InputError, match="vocabulary"):
            actions(running, {**other, TOKENS: other[TOKENS] + 1000})
        assert torch.equal(actions(running, one), want[0])


def test_images_are_those_of_the_request_whatever_was_looked_at_before(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    one, other = (random_batch(directory, batch=1, tokens=3, seed=seed) for seed in range(2))
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        runner, config = running.model.runner, running.model.config
        inputs, others = inputs_of(one, config), inputs_of(other, config)
        want = runner(inputs, 3)
        assert runner.look(others.images, others.camera_mask) is not None
        assert torch.equal(runner(inputs, 3), want)
        assert torch.equal(runner(inputs, 3, seen=runner.look(inputs.images, inputs.camera_mask)), want)


def test_nothing_is_looked_at_where_nothing_is_recorded(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05")
    config = PiConfig.load(directory)
    inputs = [inputs_of(random_batch(directory, batch=batch, tokens=3), config) for batch in (1, 2)]
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        runner = running.model.runner
        assert runner.look(inputs[0].images, inputs[0].camera_mask) is None
        runner(inputs[0], 3)
        assert runner.look(inputs[0].images, inputs[0].camera_mask) is runner._last.vision
        assert runner.look(inputs[1].images, inputs[1].camera_mask) is None, "of two requests"
    with engine(directory, catalog=catalog, runtime=RuntimeConfig("eager")) as running:
        running.model.runner(inputs[0], 3)
        assert running.model.runner.look(inputs[0].images, inputs[0].camera_mask) is None


def test_without_new_graphs_fewer_cameras_are_looked_at_in_a_larger_recording(tmp_path, catalog, noted):
    directory = random_checkpoint(tmp_path, "pi05", cameras=3)
    batch = random_batch(directory, batch=1, tokens=3, present=2)
    with engine(directory, catalog=catalog) as eager:
        want = actions(eager, batch)
    with engine(directory, catalog=catalog, runtime=attrs.evolve(STATIC, new_graphs=False)) as running:
        noted.clear()
        assert relative_error(actions(running, batch), want) < 1e-6
        assert noted == ["VisionProgram.compute", "Program.load_prompt", "Program.compute_rest"]


def test_a_kernel_that_fails_behind_the_images_makes_their_recording_anew(tmp_path, catalog, monkeypatch):
    """What was recorded before a kernel was excluded may have captured that kernel."""
    directory = random_checkpoint(tmp_path, "pi05")
    batch = LerobotBatch(random_batch(directory, batch=1, tokens=3))
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        want = running.step(batch).actions
        site = next(site for site in running.dispatcher.sites if site.op.name == "attention_paged")
        failing, plan, made, make = site.decisions[0].kernel.id, Site.plan, [], VisionProgram.__init__

    def fails(self, metadata, **dims):
        if self.decide(**dims).kernel.id == failing:
            raise RuntimeError("no compiler is here")
        return plan(self, metadata, **dims)

    def noted(self, *given):
        made.append(self)
        make(self, *given)

    monkeypatch.setattr(Site, "plan", fails)
    monkeypatch.setattr(VisionProgram, "__init__", noted)
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        got, runner = running.step(batch).actions, running.model.runner
        assert len(made) == 2
        assert made[1] is runner._last.vision is runner._visions[1, 2]
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert torch.equal(running.step(batch).actions, got)
        assert len(made) == 2


def test_an_answer_is_the_callers_own(tmp_path, catalog):
    directory = random_checkpoint(tmp_path, "pi05", action_dim=6)  # as wide as the model's, where nothing is cut off
    one, other = (random_batch(directory, batch=1, tokens=3, seed=seed) for seed in range(2))
    with engine(directory, catalog=catalog, runtime=STATIC) as running:
        first = actions(running, one)
        kept = first.clone()
        assert not torch.equal(actions(running, other), kept)
        assert torch.equal(first, kept)


# Judging values


def refuse(low, high):
    raise InputError(f"{low}..{high}")


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([0.5, -2.0, 7.0], (-2.0, 7.0)),
        ([1.0, math.nan, 2.0], (math.nan, math.nan)),
        ([1.0, math.inf], (1.0, math.inf)),
        ([3.0], (3.0, 3.0)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16])
def test_bounds_are_judged_at_once_on_a_cpu_and_later_on_a_gpu(values, bounds, dtype):
    seen = []
    values = torch.tensor(values, dtype=dtype)
    Checks(CPU).bounds(values, lambda *found: seen.append(found))
    np.testing.assert_equal(seen, [bounds])
    later = Checks(GPU)
    later.bounds(values, lambda *found: seen.append(found))
    assert len(seen) == 1
    later.make()
    later.make()
    np.testing.assert_equal(seen, [bounds] * 2)


def test_of_several_judgements_the_first_that_refuses_is_told():
    checks = Checks(GPU)
    for value in (1.0, 2.0):
        checks.bounds(torch.tensor([value]), refuse)
    checks.bounds(torch.zeros(0), refuse)
    with pytest.raises(InputError, match=r"1\.0\.\.1\.0"):
        checks.make()


@pytest.mark.parametrize("value", [1.5, -0.5, math.nan, math.inf])
def test_pixels_out_of_range_are_refused_before_an_answer_is_given_out(value):
    image = torch.rand(1, 3, 4, 4)
    image[0, 1, 2, 3] = value
    out = torch.empty(1, 1, 3, 4, 4)
    with pytest.raises(InputError, match="wrist: floating-point pixels span"):
        place_images([image], ["wrist"], out, [0], Checks(CPU))
    checks = Checks(GPU)  # the image stays on the CPU, where there may be no other device
    place_images([image], ["wrist"], out, [0], checks)
    with pytest.raises(InputError, match="wrist: floating-point pixels span"):
        checks.make()


@pytest.mark.parametrize("values", [[math.nan, 1.0], [1.0, math.inf], [-math.inf, 0.0]])
def test_numbers_that_are_none_are_not_finite(values):
    assert not finite(torch.tensor(values))


def test_pixels_become_what_numpy_makes_of_them():
    pixels = torch.arange(256, dtype=torch.uint8).expand(1, 3, 2, 256)[..., :2]
    every = torch.arange(256, dtype=torch.uint8).repeat(3)[:768].view(1, 3, 16, 16)
    for image in (pixels, every):
        out = torch.empty(1, *image.shape)
        place_images([image], ["c"], out, [0], Checks(CPU))
        want = image.numpy().astype(np.float32) / np.float32(255) * np.float32(2) - np.float32(1)
        np.testing.assert_array_equal(out[0].numpy(), want)
    floats = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    out = torch.full((2, 4, 3, 16, 16), 9.0)
    preprocess(floats, 16, out=out[:, 1])
    np.testing.assert_array_equal(out[:, 1].numpy(), floats.numpy() * np.float32(2) - np.float32(1))
    assert (out[:, [0, 2, 3]] == 9).all()


# Small tensors in one piece of memory


def test_a_mirror_holds_tensors_of_several_dtypes_that_do_not_touch():
    fields = {"a": (torch.int64, 3, 5), "b": (torch.float32, 7), "none": (torch.int32, 0), "c": (torch.int32, 2, 2)}
    mirror = Mirror(fields, CPU)
    for value, (name, (dtype, *shape)) in enumerate(fields.items()):
        assert (mirror.host[name].dtype, tuple(mirror.host[name].shape)) == (dtype, tuple(shape))
        mirror.host[name].fill_(value + 1)
    mirror.upload()
    mirror.upload("b")
    for value, name in enumerate(fields):
        assert (mirror.device[name] == value + 1).all()
        assert mirror.device[name].data_ptr() % 256 == mirror.device["a"].data_ptr() % 256 or name == "none"
    assert mirror.nbytes == 256 + 256 + 256


def test_only_what_comes_before_a_name_is_copied_when_it_is_the_last():
    mirror = Mirror({"a": (torch.int64, 4), "b": (torch.float32, 100), "c": (torch.int32, 8)}, CPU)
    device = torch.zeros_like(mirror._host)
    mirror._device, mirror._upto = device, {n: (h, device[: len(h)]) for n, (h, _) in mirror._upto.items()}
    for name in mirror.host:
        mirror.host[name].fill_(1)
    mirror.upload("b")
    assert device[: 4 * 8].view(torch.int64).tolist() == [1] * 4
    assert device[256 : 256 + 400].view(torch.float32).tolist() == [1.0] * 100
    assert not device[656:].any()
    mirror.upload()
    assert device[768:].view(torch.int32)[:8].tolist() == [1] * 8


@pytest.mark.parametrize(("stored", "asked"), [("float32", None), ("bfloat16", None), ("float32", "bfloat16")])
def test_rows_written_in_place_are_those_of_their_own(stored, asked, tmp_path, catalog):
    """The towers' precision is that of the vision tower, or not, as where a checkpoint mixes them."""
    directory = random_checkpoint(tmp_path, "pi05", dtype=stored)
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with engine(directory, catalog=catalog, dtype=asked) as running, torch.no_grad():
        model = running.model.runner.model
        want = model.embed_images(images)
        rows = torch.zeros(want.shape, dtype=model.precision.towers)
        model.embed_images_into(rows, images)
        assert torch.equal(rows, want.to(rows.dtype))
        assert len(rows.unique(dim=0)) == len(rows)
