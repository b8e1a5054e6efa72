"""Models of random weights, and the published architecture without any."""

import attrs
import torch
from phyai.dispatch import Dispatcher
from phyai.engine import EngineArgs, EngineConfig
from phyai.environment import Device, Environment
from phyai.policy import Policy
from phyai_models.layers import Scope
from phyai_models.pi.config import PiConfig
from phyai_models.pi.hosted import LerobotBatch, RandomCheckpoint
from phyai_models.pi.loading import bytes_of, largest_bytes, model_class
from phyai_models.pi.model import Savings
from phyai_models.pi.precision import Precision
from phyai_models.pi05 import PI05Args
from phyai_models.weights import RandomSource


def small():
    return attrs.evolve(
        PiConfig.standard(cameras=1),
        language_model=attrs.evolve(PiConfig.standard().language_model, width=16, depth=2, mlp_dim=24, head_dim=8),
        expert=attrs.evolve(PiConfig.standard().expert, width=16, depth=2, mlp_dim=24, head_dim=8),
        vision=attrs.evolve(
            PiConfig.standard().vision, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
            num_attention_heads=2, image_size=16, patch_size=8,
        ),
        vocab_size=50,
    )  # fmt: skip


def test_random_weights_are_those_of_their_seed(catalog):
    from phyai.engine import Engine

    batch = {
        "observation.images.camera0": torch.rand(1, 3, 16, 16), "noise": torch.randn(1, 50, 32),
        "observation.language.tokens": torch.arange(5)[None],
        "observation.language.attention_mask": torch.ones(1, 5, dtype=torch.bool),
    }  # fmt: skip
    answers = []
    for seed in (0, 0, 1):
        args = EngineArgs("pi05", PI05Args(RandomCheckpoint(small(), seed)), EngineConfig())
        with Engine(args, catalog=catalog) as running:
            answers.append(running.step(LerobotBatch(batch)).actions)
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])
    assert answers[0].isfinite().all()


def test_random_tensors_keep_activations_in_size():
    weight = torch.empty(300, 200)
    RandomSource().take("mlp.weight", weight)
    assert abs(float(weight.std()) * 200**0.5 - 1) < 0.02
    norm = torch.empty(4000)
    RandomSource().take("layers.0.layer_norm1.weight", norm)
    assert abs(float(norm.mean()) - 1) < 0.01


def test_the_published_architecture_has_its_parameters(catalog):
    config = PiConfig.standard()
    dispatcher = Dispatcher(catalog, Policy(), Environment(Device("cpu")))
    scope = Scope(dispatcher, torch.device("meta"), "pi05", "", torch.bfloat16, torch.bfloat16)
    model = model_class("pi05")(scope, config, Precision.of(config, "bf16"), Savings(skip_last_layer=False))
    millions = bytes_of(model) / 2 / 1e6
    assert abs(millions - (412 + 1982 + 527 + 311 + 116)) < 8  # the towers as published, and small heads


def test_of_the_published_architecture_the_largest_layer_is_its_embedding_table(catalog):
    scope = Scope(
        Dispatcher(catalog, Policy(), Environment(Device("cpu"))), torch.device("meta"), "pi05", "",
        torch.bfloat16, torch.bfloat16,
    )  # fmt: skip
    config = PiConfig.standard()
    model = model_class("pi05")(scope, config, Precision.of(config, "bf16"), Savings())
    assert largest_bytes(model) == 257152 * 2048 * 2
