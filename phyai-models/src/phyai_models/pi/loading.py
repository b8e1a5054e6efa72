"""From a checkpoint directory to a π model on a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

import attrs
import torch
from phyai.dispatch import Dispatcher
from phyai.quant import QuantPlan, plan_from_policy
from phyai.quant.importers import Importer

from phyai_models.layers import Layer, Scope, Unused
from phyai_models.layers.linear import matrices
from phyai_models.pi.config import PiConfig
from phyai_models.pi.model import PALIGEMMA, PiModel, Savings
from phyai_models.pi.precision import Precision
from phyai_models.runner import memory_errors, require_free
from phyai_models.weights import Checkpoint, QuantizedLayers, WeightSource

ADVICE = "choose a smaller params_dtype, quantize it by the policy, or free memory"

#: Checkpoints that tie the two may store the output's table alone; lerobot computes with the input's.
STAND_INS = {f"{PALIGEMMA}.language_model.embed_tokens.weight": "paligemma_with_expert.paligemma.lm_head.weight"}
IGNORED = {
    "paligemma_with_expert.gemma_expert.lm_head.weight": "the expert predicts actions and has no use for a vocabulary",
    "*.vision_model.embeddings.position_ids": "a constant that older versions of transformers stored",
}


def model_class(family: str) -> type[PiModel]:
    if family == "pi05":
        from phyai_models.pi05.model import PI05

        return PI05
    from phyai_models.pi0.model import PI0

    return PI0


def open_source(
    checkpoint: Checkpoint, progress: Callable[[int], None] | None = None, importers: Iterable[Importer] = ()
) -> WeightSource:
    """A checkpoint, quantized or not, seen through the names of π models. ``importers`` are tried before the core's.

    Raises:
        CheckpointError: its quantization is not supported.
    """
    quantized = QuantizedLayers.open(checkpoint.directory, importers)
    return WeightSource(
        checkpoint,
        prefixes=("", "model."),
        stand_ins=STAND_INS,
        ignored=IGNORED,
        quantized=quantized,
        progress=progress,
    )


def load_model(
    source: WeightSource,
    config: PiConfig,
    dispatcher: Dispatcher,
    *,
    device: str = "cpu",
    params_dtype: str | None = None,
    savings: Savings | None = None,
    capture: bool = False,
    fixed_lengths: bool = False,
    max_batch: int = 1,
) -> PiModel:
    """Build the model that ``config`` describes and load its weights, one layer at a time.

    The ``quantization`` section of the dispatcher's policy is applied to each layer as it is loaded. ``capture`` and
    ``fixed_lengths`` say how it will run: see :class:`phyai_models.layers.Scope`. ``max_batch`` requests are
    served at a time.

    Raises:
        DeviceMemoryError: the weights do not fit the device's memory; nothing of them is left there.
        QuantPolicyError: the quantization section is refused.
        CheckpointError: the tensors do not fit the model (all misfits are listed), or are not finite.
    """
    precision = Precision.of(config, params_dtype)
    scope = Scope(
        dispatcher=dispatcher,
        device=torch.device(device),
        path=config.family,
        source="",
        dtype=precision.towers,
        norm_dtype=precision.norms,
        facts={"model.family": config.family},
        quantization=plan_from_policy(dispatcher.policy.quantization),
        capture=capture,
        fixed_lengths=fixed_lengths,
    )

    def made(on: torch.device) -> PiModel:
        there = attrs.evolve(scope, device=on)
        return model_class(config.family)(there, config, precision, savings or Savings(), max_batch)

    described = made(torch.device("meta"))  # takes no memory, and says how much there will be
    source.require(described.tensors())
    what, needed = f"{config.family} in {str(precision.towers).removeprefix('torch.')}", bytes_of(described)
    if scope.quantization == QuantPlan() and source.quantized is None:
        require_free(needed, scope.device, what, ADVICE)
    model: PiModel | None = None

    def release() -> None:
        nonlocal model
        model = None  # which the error would hold, through the frame of this function
        dispatcher.release()

    with memory_errors(scope.device, what, needed, ADVICE, release):
        model = made(scope.device)
        model.load(source)
    source.check_finite()
    assert model is not None  # released only where an error was raised
    return model


def require_forms(model: PiModel, source: WeightSource) -> None:
    """Check, before :func:`renew` writes anything, that other weights take the forms of a model's.

    Raises:
        DeviceMemoryError: there is no memory to read a matrix beside the model's.
        CheckpointError: one is quantized otherwise, or is stored quantized and damaged.
    """
    with _memory_errors_while_renewing(model):
        for matrix in matrices(model):
            matrix.require_form(source)


def require_renewable(model: PiModel) -> None:
    """Check, before :func:`renew` writes anything, that every kernel that the model's weights are bound to can take
    others in place.

    Raises:
        CallError: one cannot; it is named.
    """
    for site in model.dispatcher.sites:
        site.require_refreshable()


def renew(model: PiModel, source: WeightSource) -> None:
    """Read other weights into the memory of a model's, one layer at a time.

    Raises:
        DeviceMemoryError: there is none for a layer beside the model's. Then, as after any other error, old and new
            weights are mixed.
        CheckpointError: the tensors are damaged, or not finite.
    """
    with _memory_errors_while_renewing(model):
        model.refresh(source)
        source.check_finite()


def _memory_errors_while_renewing(model: PiModel) -> AbstractContextManager[None]:
    what, advice = "reading new weights layer by layer", "free memory and give them again"
    return memory_errors(model.device, what, largest_bytes(model), advice, lambda: None)


def bytes_of(model: PiModel) -> int:
    """What the parameters of an unquantized model take, counting all in the precision of the towers."""
    return sum(used(model)) * model.precision.towers.itemsize


def largest_bytes(model: PiModel) -> int:
    """What those of its largest layer take."""
    return max(used(model)) * model.precision.towers.itemsize


def used(layer: Layer) -> Iterator[int]:
    """Of every layer that has parameters in use, how many it holds beside those of its parts."""
    if isinstance(layer, Unused):
        return
    parts = list(layer.parts())
    below = {spec.name for part in parts for spec in part.tensors()}
    yield sum(math.prod(spec.shape) for spec in layer.tensors() if spec.name not in below)
    for part in parts:
        yield from used(part)
