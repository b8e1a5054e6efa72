"""From a checkpoint directory to a π model on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from phyai.dispatch import Dispatcher
from phyai.quant import plan_from_policy

from phyai_models.layers import Scope
from phyai_models.pi.config import PiConfig
from phyai_models.pi.model import PALIGEMMA, PiModel, Savings
from phyai_models.pi.precision import Precision
from phyai_models.weights import Checkpoint, WeightSource

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


def load_model(
    checkpoint: Checkpoint,
    config: PiConfig,
    dispatcher: Dispatcher,
    *,
    device: str = "cpu",
    params_dtype: str | None = None,
    savings: Savings | None = None,
    progress: Callable[[int], None] | None = None,
) -> PiModel:
    """Build the model that ``config`` describes and load its weights, one layer at a time.

    The ``quantization`` section of the dispatcher's policy is applied to each layer as it is loaded. ``progress``
    gets the bytes of each tensor read.

    Raises:
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
    )
    model = model_class(config.family)(scope, config, precision, savings or Savings())
    source = WeightSource(checkpoint, prefixes=("", "model."), stand_ins=STAND_INS, ignored=IGNORED, progress=progress)
    source.require(model.tensors())
    model.load(source)
    source.check_finite()
    return model
