"""What a π0.5 inference must at least do, against figures counted elsewhere from the published architecture."""

import attrs
import pytest
import torch
from phyai_models.bench.floor import (
    H200_DATASHEET,
    Case,
    Ceilings,
    Work,
    expert,
    floor_seconds,
    layer_parameters,
    modulation_parameters,
    prefix,
    siglip_parameters,
    stages,
    vision,
)
from phyai_models.pi.config import PiConfig

PI05 = PiConfig.standard("pi05")


def milliseconds(case, **how):
    return {n: s * 1e3 for n, s in floor_seconds(stages(case, **how), H200_DATASHEET).items()}


def test_parameters_of_the_towers():
    assert siglip_parameters(PI05.vision) == pytest.approx(412e6, rel=5e-3)
    assert 18 * layer_parameters(PI05.language_model) == pytest.approx(1982e6, rel=1e-3)
    assert 18 * layer_parameters(PI05.expert) == pytest.approx(311e6, rel=2e-3)
    assert modulation_parameters(PI05.expert) == pytest.approx(116e6, rel=5e-3)


@pytest.mark.parametrize(
    ("cameras", "prompt", "chunk", "want"),
    [
        (3, 200, 50, (0.67, 4.02, 1.33)),
        (3, 16, 50, (0.67, 3.23, 1.33)),
        (2, 200, 50, (0.45, 2.93, 1.32)),
        (2, 48, 10, (0.45, 2.29, 1.32)),
    ],
)
def test_the_floor_of_an_h200(cameras, prompt, chunk, want):
    case = Case(attrs.evolve(PI05, chunk_size=chunk), cameras, prompt)
    got = milliseconds(case, skip_last_layer=False)
    assert [got[name] for name in ("vision", "prefix", "expert")] == pytest.approx(want, abs=0.012)
    assert got["total"] == pytest.approx(sum(want), abs=0.03)


def test_leaving_out_the_last_layer_saves_as_much_as_it_costs():
    assert milliseconds(Case(PI05, 3, 200))["prefix"] == pytest.approx(3.80, abs=0.01)


def test_operations_of_a_whole_inference():
    work = stages(Case(PI05, 3, 200), skip_last_layer=False)
    assert sum(w.flops for w in work.values()) == pytest.approx(5.0e12, rel=0.01)


def test_the_expert_reads_its_weights_every_step_and_the_cache_of_every_request():
    one = expert(Case(PI05, 3, 200, steps=10))
    many = expert(Case(PI05, 3, 200, steps=10, batch=8))
    cache = 2 * 18 * 968 * 256 * 2
    assert cache == pytest.approx(17.8e6, rel=0.01)
    assert many.bytes - one.bytes == 7 * 10 * cache
    assert many.flops == 8 * one.flops


def test_fp8_halves_the_bytes():
    assert vision(Case(PI05, 3, 200, itemsize=1)).bytes * 2 == vision(Case(PI05, 3, 200)).bytes


def test_a_floor_is_the_longer_of_computing_and_reading():
    assert Work(flops=6, bytes=10).seconds(Ceilings(flops=2, bandwidth=5)) == 3
    assert Work(flops=6, bytes=20).seconds(Ceilings(flops=2, bandwidth=5)) == 4


def counted_flops(work):
    """What torch itself counts for the products and attention of ``work``."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_counts_equal_what_torch_counts_in_the_plain_implementation(tmp_path):
    """Products and attention only, at a small size; the plain implementation attends over masked keys as well."""
    from phyai_models.bench.plain import PlainPi
    from phyai_models.pi.inputs import Inputs, from_lerobot
    from pi_cases import random_batch, random_checkpoint
    from safetensors.torch import load_file

    directory = random_checkpoint(tmp_path, "pi05", cameras=2)
    config = PiConfig.load(directory)
    plain = PlainPi(load_file(directory / "model.safetensors"), config, torch.float32)
    inputs = from_lerobot(random_batch(directory, batch=1, tokens=7), config)
    given = [getattr(inputs, f.name) for f in attrs.fields(Inputs)]
    case = Case(config, 2, 7, steps=4)
    assert counted_flops(lambda: plain.image(inputs.images[0])) == vision(case).flops
    whole = counted_flops(lambda: plain(*given, plain.embedded_times(4)))
    heads = 2 * 2 * config.max_action_dim * config.expert.width * config.chunk_size * 4  # in and out, every step
    times = 2 * (2 * config.expert.width**2 + modulation_parameters(config.expert)) * 4  # not hoisted there
    ours = vision(case).flops + prefix(case, skip_last_layer=False).flops + expert(case).flops
    assert whole == ours + heads + times
