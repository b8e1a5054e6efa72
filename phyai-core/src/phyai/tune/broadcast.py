"""One process tunes, all use the result: with several ranks, one measures and sends what this module writes.

How the bytes travel is the caller's affair (a collective, a file). Every rank derives the choices itself, from the same
timings under its own policy, and refuses a message from which it would choose otherwise than the sender: ranks that
disagree about a kernel would wait for each other for ever.

::

    data = pack(outcome.layer) if rank == 0 else None
    data = broadcast(data)                                # torch.distributed, MPI, …
    apply(dispatcher, data)
"""

from __future__ import annotations

import hashlib
import json

from phyai.dispatch import Dispatcher, PolicyChange
from phyai.policy import Policy
from phyai.tune.layer import TuningLayer, tuning_layer
from phyai.tune.record import Measurement, TuneError
from phyai.tune.store import MAX_BYTES

_SCHEMA = "phyai.tune.broadcast/v1"


def pack(layer: TuningLayer) -> bytes:
    """A tuning layer as bytes: the measurements that count, and a digest of what was chosen."""
    measurements = [chosen.measurement.to_json() for chosen in layer.chosen]
    return json.dumps({"schema": _SCHEMA, "choices": _digest(layer), "measurements": measurements}).encode()


def unpack(data: bytes, dispatcher: Dispatcher) -> TuningLayer:
    """The layer that :func:`pack` wrote, for this process's device, catalog and policy.

    Raises:
        TuneError: the bytes are no such message, or do not lead to the sender's choices here.
    """
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes")
        message = json.loads(data)
        if message["schema"] != _SCHEMA:
            raise ValueError(f"schema {message['schema']!r:.40}")
        choices, entries = str(message["choices"]), list(message["measurements"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TuneError(f"no tuning result can be read from this message: {error}") from None
    measurements = [Measurement.from_json(entry) for entry in entries]
    layer = tuning_layer(measurements, dispatcher.catalog, dispatcher.policy, dispatcher.environment)
    if _digest(layer) != choices:
        why = "; ".join(f"{key}: {reason}" for key, reason in sorted(layer.stale.items())[:3])
        raise TuneError(
            "this process would choose other kernels than the one that tuned: "
            + (why or "its policy or its plug-ins differ")
        )
    return layer


def apply(dispatcher: Dispatcher, data: bytes) -> PolicyChange:
    """Put the sender's tuning into the dispatcher's policy; see :func:`unpack`, which may raise."""
    policy: Policy = unpack(data, dispatcher).onto(dispatcher.policy)
    return dispatcher.replace_policy(policy)


def _digest(layer: TuningLayer) -> str:
    choices = sorted((chosen.measurement.key, *chosen.choice.ranking) for chosen in layer.chosen)
    return hashlib.sha256(json.dumps(choices).encode()).hexdigest()
