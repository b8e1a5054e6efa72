"""What π0.5 at real size would be given on a machine that is not here: every call site's decision, nothing prepared."""

import torch
from phyai.dispatch import Dispatcher
from phyai.environment import Environment
from phyai.quant import plan_from_policy
from phyai.quant.weight import QuantizedWeight
from phyai.resolver import resolve
from phyai_models.layers import Scope
from phyai_models.pi.config import PiConfig
from phyai_models.pi.loading import model_class
from phyai_models.pi.model import Savings
from phyai_models.pi.precision import Precision
from phyai_models.weights import WeightSource

#: What codes are stored as; of four bits two lie in a byte.
STORED = {"fp8_e4m3": "float8_e4m3fn", "int8": "int8", "int4": "uint8", "fp4_e2m1": "uint8"}


class Nothing(WeightSource):
    """Weights that have shapes only."""

    def __init__(self):
        self.not_finite = []

    def take(self, name, out):
        pass

    def stored_quantized(self, name):
        return None

    def quantize(self, name, shape, scheme, method, device, *, below=()):
        quant, (n, k) = scheme.weight, shape
        codes = torch.empty(n, k * quant.bits // 8, dtype=getattr(torch, STORED[quant.dtype]), device=device)
        scale = torch.empty(quant.scale_shape(n, k), device=device)
        second = torch.empty((), device=device) if quant.second_scale else None
        return QuantizedWeight(scheme, shape, codes=codes, scale=scale, second_scale=second)


def load(device, policy, catalog, *, fixed_lengths=False, family="pi05", libraries=None):
    """The model, without numbers, bound to the call sites that it would have in CUDA graphs."""
    config = PiConfig.standard(family)
    environment = Environment.simulated(device, libraries=libraries or catalog.libraries)
    dispatcher = Dispatcher(catalog, policy, environment)
    scope = Scope(
        dispatcher, torch.device("meta"), family, "", torch.bfloat16, torch.bfloat16,
        facts={"model.family": family}, capture=True, fixed_lengths=fixed_lengths,
        quantization=plan_from_policy(policy.quantization),
    )  # fmt: skip
    model = model_class(family)(scope, config, Precision.of(config, "bf16"), Savings())
    model.load(Nothing())
    if family == "pi05":
        shape = (10, 2 * config.expert.depth + 1, 3 * config.expert.width)
        model.modulation = lambda steps: torch.empty(shape, dtype=torch.bfloat16, device="meta")
    model.all_steps.site(10)
    return model


def inference(device, policy, catalog, *, batch=1, prompt=200, fixed_lengths=False, family="pi05", libraries=None):
    """``(site, decision)`` of every call of an inference captured in a CUDA graph."""
    model = load(device, policy, catalog, fixed_lengths=fixed_lengths, family=family, libraries=libraries)
    dispatcher, config = model.dispatcher, model.config
    rows = {
        "vision": batch * 3 * config.vision.patches,
        "prefix": batch * (3 * config.vision.patches + prompt),
        "expert": batch * sum(model.segments),
        "head": batch * config.chunk_size,
    }
    for site in dispatcher.sites:
        role = site.static["role"]
        m = batch * prompt if site.op.name == "embedding" else rows[role]
        requests = batch * 3 if role == "vision" else batch
        dims = {"M": m, "T": m, "R": 1, "B": requests, "Sq": 256, "Sk": 256, "P": m, "S": 256}
        open_dims = {name[6:] for name in site.open_dims}
        facts = site.reader.with_dims({name: size for name, size in dims.items() if name in open_dims})
        yield site, resolve(facts, catalog, policy, dispatcher.environment, parts=site.chained(policy))


def decisions(device, policy, catalog, **more):
    """``{(role, op or op.part): kernel ids}`` of :func:`inference`, which takes what is said. A part that is composite
    too counts as a call of its op as well."""
    found = {}

    def note(role, op, decision):
        found.setdefault((role, op), set()).add(decision.kernel.id)
        for name, kernel in of_parts(decision):
            found.setdefault((role, f"{op}.{name}"), set()).add(kernel)
        if decision.kernel.id.startswith("decomposed."):
            for part in decision.parts.values():
                if part.parts:
                    note(role, part.op, part)

    for site, decision in inference(device, policy, catalog, **more):
        note(site.static["role"], site.op.name, decision)
    return {key: sorted(ids) for key, ids in found.items()}


def of_parts(decision):
    """``(part, kernel id)`` of the chain that a decision may be, and of the chains in it."""
    if decision.kernel.id.startswith("decomposed."):
        for name, part in decision.parts.items():
            yield name, part.kernel.id
            yield from ((f"{name}.{inner}", kernel) for inner, kernel in of_parts(part))
