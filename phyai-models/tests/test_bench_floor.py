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
    assert sum(w.operations for w in work.values()) == pytest.approx(5.0e12, rel=0.01)


def test_the_expert_reads_its_weights_every_step_and_the_cache_of_every_request():
    one = expert(Case(PI05, 3, 200, steps=10))
    many = expert(Case(PI05, 3, 200, steps=10, batch=8))
    cache = 2 * 18 * 968 * 256 * 2
    assert cache == pytest.approx(17.8e6, rel=0.01)
    assert many.bytes - one.bytes == 7 * 10 * cache
    assert many.operations == 8 * one.operations


def test_float32_doubles_the_bytes():
    assert vision(Case(PI05, 3, 200, dtype="fp32")).bytes == 2 * vision(Case(PI05, 3, 200)).bytes


def test_a_floor_is_the_longer_of_computing_and_reading():
    ceilings = Ceilings(flops={"bf16": 2}, bandwidth=5)
    for nbytes, seconds, limit in ((10, 3, "bf16"), (20, 4, "memory")):
        work = Work({"bf16": 6}, nbytes)
        assert (work.seconds(ceilings), work.limits(ceilings)) == (seconds, (limit,))


def test_products_in_several_types_take_their_times_one_after_another():
    work, ceilings = Work({"bf16": 6, "fp8_e4m3": 12}, 10), Ceilings({"bf16": 2, "fp8_e4m3": 4}, bandwidth=5)
    assert work.seconds(ceilings) == 6 / 2 + 12 / 4
    assert work.limits(ceilings) == ("fp8_e4m3", "bf16")


def test_there_is_no_floor_without_the_ceiling_that_it_stands_under():
    work, ceilings = Work({"bf16": 6, "int4": 12}, 10), Ceilings({"bf16": 2}, bandwidth=5)
    assert work.seconds(ceilings) is None
    assert floor_seconds({"a": work, "b": Work({"bf16": 6})}, ceilings) == {"a": None, "b": 3, "total": None}


def counted_flops(work):
    """What torch itself counts for the products and attention of ``work``."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_counts_equal_what_torch_counts_in_the_plain_implementation(tmp_path):
    """Products and attention only, at a small size; the plain implementation attends over masked keys as well."""
    from phyai_models.bench.plain import PlainPi
    from phyai_models.pi.inputs import Inputs
    from pi_cases import inputs_of, random_batch, random_checkpoint
    from safetensors.torch import load_file

    directory = random_checkpoint(tmp_path, "pi05", cameras=2)
    config = PiConfig.load(directory)
    plain = PlainPi(load_file(directory / "model.safetensors"), config, torch.float32)
    inputs = inputs_of(random_batch(directory, batch=1, tokens=7), config)
    given = [getattr(inputs, f.name) for f in attrs.fields(Inputs)]
    case = Case(config, 2, 7, steps=4)
    assert counted_flops(lambda: plain.image(inputs.images[0])) == vision(case).operations
    whole = counted_flops(lambda: plain(*given, plain.embedded_times(4)))
    heads = 2 * 2 * config.max_action_dim * config.expert.width * config.chunk_size * 4  # in and out, every step
    times = 2 * (2 * config.expert.width**2 + modulation_parameters(config.expert)) * 4  # not hoisted there
    ours = sum(w.operations for w in stages(case, skip_last_layer=False).values())
    assert whole == ours + heads + times
