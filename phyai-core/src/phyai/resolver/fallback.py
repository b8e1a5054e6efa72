"""What happens when only a reference kernel is left: whether another backend serves the device."""

from __future__ import annotations

from collections.abc import Iterable

from phyai.composite import is_decomposition
from phyai.environment import Environment
from phyai.facts import Facts
from phyai.kernel import Band, Kernel
from phyai.predicates import FALSE

#: The backend whose kernels say what the ops mean.
REFERENCE = "reference"


def references(kernels: Iterable[Kernel], facts: Facts) -> frozenset[str]:
    """The ids of an op's reference kernels on a call: those of the backend ``reference``; where it has none for the op,
    whatever is in the reference band. The band alone does not make one: it also holds what is to come last."""
    named = list(kernels)
    own = [k.id for k in named if k.backend == REFERENCE]
    return frozenset(own or (k.id for k in named if k.band_on(facts) is Band.REFERENCE))


class _Elsewhere:
    """The names of all facts that say where a call runs: what is not known of them is absent."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.startswith(("device.", "lib."))


def serving_backends(kernels: tuple[Kernel, ...], where: Facts) -> tuple[str, ...]:
    """Backends other than reference ones that serve a device.

    A backend serves it when, of all kernels of all ops, one that is above the reference band on some calls has a
    ``when`` that the device and the installed libraries alone do not make false. ``where`` holds the ``device.*`` and
    ``lib.*`` facts.
    """
    found: dict[str, None] = {}
    for kernel in kernels:
        reference = kernel.band is Band.REFERENCE and not kernel.bands
        if reference or kernel.backend in found or is_decomposition(kernel):
            continue
        if kernel.when.given(where, absent=_Elsewhere()) != FALSE:
            found[kernel.backend] = None
    return tuple(found)


def environment_facts(facts: Facts, environment: Environment) -> Facts:
    """``facts`` completed by the environment's; a fact of the call itself wins."""
    return facts if "device.type" in facts else Facts({**environment.facts(), **facts})


def where(facts: Facts) -> Facts:
    """The facts that say where the call runs."""
    return Facts({name: value for name, value in facts.items() if name.startswith(("device.", "lib."))})
