"""The catalog: every op, kernel, quantization format, importer and model that was found, and how each plug-in fared.

A catalog is immutable. :func:`phyai.plugins.discover` makes the one of the installed plug-ins;
:meth:`Catalog.build` makes one of whatever it is given.

>>> from phyai.predicates import TRUE
>>> from phyai.kernel import Capture, Kernel, Numerics
>>> from phyai.plugins import Plugin, PluginStatus
>>> kernel = Kernel(id="mine.layer_norm", op="layer_norm", when=TRUE, prepare=print, capture=Capture.SAFE,
...                 numerics=Numerics(reproducible=True))
>>> catalog = Catalog.build([Plugin(PluginStatus("mine"), kernels=(kernel,))])
>>> [k.id for k in catalog.kernels_of("layernorm")], catalog.op("layernorm").name
(['mine.layer_norm'], 'layer_norm')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from phyai.composite import decomposition, innermost, is_decomposition
from phyai.environment import CORE_LIBRARIES, Library, merge_libraries
from phyai.errors import DeclarationError
from phyai.facts import CORE_FACTS, FactSpec, Vocabulary
from phyai.install import install
from phyai.kernel import Kernel
from phyai.op import Op
from phyai.plugins.observers import Observers
from phyai.plugins.records import Plugin, PluginStatus
from phyai.spelling import did_you_mean

if TYPE_CHECKING:
    from phyai.environment import Environment
    from phyai.plugins.hooks import Command


@attrs.frozen(eq=False)
class Catalog:
    """See the module. Records are sorted by name, so nothing depends on the order of loading.

    ``refused`` maps each id that two plug-ins claim to a sentence that names both.
    """

    ops: tuple[Op, ...]
    kernels: tuple[Kernel, ...]
    quant_formats: tuple[Any, ...] = ()
    importers: tuple[Any, ...] = ()
    models: tuple[Any, ...] = ()
    libraries: tuple[Library, ...] = CORE_LIBRARIES
    commands: tuple[Command, ...] = ()
    plugins: tuple[PluginStatus, ...] = ()
    refused: Mapping[str, str] = attrs.field(factory=dict)
    observers: Observers = attrs.field(factory=Observers)
    _owners: Mapping[str, PluginStatus] = attrs.field(factory=dict, repr=False)
    #: Every spelling of an op's name, to its name.
    aliases: Mapping[str, str] = attrs.field(init=False, repr=False)
    #: Every fact that any call can carry.
    vocabulary: Vocabulary = attrs.field(init=False, repr=False)
    _op: Mapping[str, Op] = attrs.field(init=False, repr=False)
    _kernel: Mapping[str, Kernel] = attrs.field(init=False, repr=False)
    _kernels_of: Mapping[str, tuple[Kernel, ...]] = attrs.field(init=False, repr=False)
    _vocabularies: Mapping[str, Vocabulary] = attrs.field(init=False, repr=False)

    @classmethod
    def build(
        cls, plugins: Iterable[Plugin] = (), *, ops: Iterable[Op] | None = None, tolerant: bool = False
    ) -> Catalog:
        """A catalog of ``plugins``, each checked, beside ``ops`` (None: the core's).

        When ``tolerant``, a plug-in that declares something that cannot be true is left out, an id that two plug-ins
        claim is refused to both, and their rows say why.

        Raises:
            DeclarationError: one of these is the case, and not ``tolerant``.
        """
        from phyai.plugins.checking import check

        if ops is None:
            from phyai.ops import CORE_OPS

            ops = CORE_OPS
        core = tuple(ops)
        given = tuple(plugins)
        accepted, refused = check(given, core)
        if not tolerant:
            for before, after in zip(given, accepted, strict=True):
                if after is not before:
                    raise DeclarationError(f"{after.status}: {after.status.reason}")
        accepted = tuple(plugin.counted() for plugin in accepted)

        def gather(kind: str) -> list[Any]:
            return [record for plugin in accepted for record in getattr(plugin, kind)]

        every = tuple(sorted([*core, *gather("ops")], key=lambda op: op.name))
        decompositions = [decomposition(op) for op in every if op.decomposes]
        return cls(
            ops=every,
            kernels=tuple(sorted([*gather("kernels"), *decompositions], key=lambda kernel: kernel.id)),
            quant_formats=tuple(gather("quant_formats")),
            importers=tuple(gather("importers")),
            models=tuple(sorted(gather("models"), key=lambda model: model.name)),
            libraries=merge_libraries([*CORE_LIBRARIES, *gather("libraries")]),
            commands=tuple(sorted(gather("commands"), key=lambda command: command.name)),
            plugins=tuple(plugin.status for plugin in accepted),
            refused=MappingProxyType(refused),
            observers=Observers(tuple((p.status.name, p.observe) for p in accepted if p.observe is not None)),
            owners={kernel.id: plugin.status for plugin in accepted for kernel in plugin.kernels},
        )

    def __attrs_post_init__(self) -> None:
        by_op: dict[str, list[Kernel]] = {op.name: [] for op in self.ops}
        for kernel in self.kernels:
            by_op[kernel.op].append(kernel)
        derived = {
            "_op": {op.name: op for op in self.ops},
            "aliases": {spelling: op.name for op in self.ops for spelling in (*op.aliases, op.name)},
            "vocabulary": merge_vocabularies(self.ops),
            "_kernel": {kernel.id: kernel for kernel in self.kernels},
            "_kernels_of": {op: tuple(kernels) for op, kernels in by_op.items()},
            "_vocabularies": {op.name: op_vocabulary(op) for op in self.ops},
        }
        for name, value in derived.items():
            object.__setattr__(self, name, MappingProxyType(value) if isinstance(value, dict) else value)

    def op(self, name: str) -> Op:
        """The op of that name or alias.

        Raises:
            DeclarationError: there is none; the message says which name is near.
        """
        found = self.aliases.get(name)
        if found is None:
            raise DeclarationError(f"unknown op {name!r}; {_nearest(name, self.aliases)}")
        return self._op[found]

    def kernels_of(self, op: str) -> tuple[Kernel, ...]:
        """The kernels of an op (by name or alias), sorted by id."""
        return self._kernels_of[self.op(op).name]

    def kernel(self, id: str) -> Kernel:
        """The kernel of that id; aliases of ops hold inside ids too.

        Raises:
            DeclarationError: there is none, or two plug-ins claim it.
        """
        canonical = self.canonical_id(id)
        found = self._kernel.get(canonical)
        if found is None:
            why = self.refused.get(canonical) or _nearest(canonical, self._kernel)
            raise DeclarationError(f"unknown kernel {id!r}; {why}")
        return found

    def has_kernel(self, id: str) -> bool:
        return self.canonical_id(id) in self._kernel

    def canonical_id(self, id: str) -> str:
        """``id`` (or a glob of ids) with the op's alias, if it uses one, replaced by the op's name."""
        backend, dot, rest = id.partition(".")
        op, dot2, variant = rest.partition(".")
        return f"{backend}{dot}{self.aliases.get(op, op)}{dot2}{variant}"

    def owner(self, id: str) -> PluginStatus | None:
        """The plug-in that declares a kernel."""
        return self._owners.get(self.canonical_id(id))

    @property
    def lacks_backends(self) -> str | None:
        """What to say, and to do, where no backend has brought a kernel; None where one has."""
        if any(not is_decomposition(kernel) for kernel in self.kernels):
            return None
        found = [status for status in self.plugins if status.group == "phyai.backends"]
        if found:
            listed = ", ".join(f"{status.name} ({status.state.value})" for status in found)
            return f"no backend that is installed can be used: {listed}; `phyai backends` says why, and what to do"
        return (
            f"no backend is installed: {install('phyai-backend-reference')} for torch's kernels on every device, and "
            "on NVIDIA GPUs also phyai-backend-cuda, phyai-backend-flashinfer, phyai-backend-humming"
        )

    def vocabulary_of(self, op: str) -> Vocabulary:
        """Every fact that a call of this op can carry."""
        return self._vocabularies[self.op(op).name]

    def model(self, name: str) -> Any:
        """The model plug-in of that name.

        Raises:
            DeclarationError: there is none; the message lists those that are there, and broken plug-ins.
        """
        for model in self.models:
            if model.name == name:
                return model
        here = ", ".join(model.name for model in self.models) or f"none; {install('phyai-models')} for pi05 and pi0"
        broken = "".join(
            f"; {status}: {status.reason}"
            for status in self.plugins
            if status.group == "phyai.models" and not status.state.usable
        )
        raise DeclarationError(f"unknown model {name!r}; models installed: {here}{broken}")

    def environment(self, device: str = "auto") -> Environment:
        """This machine's ``device``, with the libraries that this catalog's backends declare."""
        from phyai.environment import Environment

        return Environment.detect(device, libraries=self.libraries)


def op_vocabulary(op: Op) -> Vocabulary:
    """The facts of one op's calls: the core's, the op's, and of its parts ``parts.<name>.layer`` and, where they are no
    composites themselves, ``parts.<name>.quant.*`` (else their parts', ``parts.<name>.parts.<inner>.quant.*``)."""
    heads = [(f"parts.{part.name}.", "layer") for part in op.parts]
    heads += [(head, "quant.") for head, _ in innermost(op.parts)]
    parts = [
        attrs.evolve(spec, name=f"{head}{spec.name}")
        for head, family in heads
        for spec in CORE_FACTS
        if spec.name.startswith(family)
    ]
    return Vocabulary((*CORE_FACTS, *op.fact_specs(), *parts))


def merge_vocabularies(ops: Iterable[Op]) -> Vocabulary:
    """The facts of all ops' calls. Two ops may give one fact other values, but not another kind.

    Raises:
        DeclarationError: two ops declare one fact with different kinds.
    """
    merged: dict[str, FactSpec] = {}
    origin: dict[str, str] = {}
    for op in ops:
        for spec in op_vocabulary(op).specs:
            known = merged.setdefault(spec.name, spec)
            if known == spec:
                origin.setdefault(spec.name, op.name)
                continue
            if known.kind is not spec.kind:
                raise DeclarationError(
                    f"ops {origin[spec.name]} and {op.name} declare the fact {spec.name} with different kinds: "
                    f"{known.kind.value} and {spec.kind.value}"
                )
            values = None
            if known.values is not None and spec.values is not None:
                values = tuple(dict.fromkeys((*known.values, *spec.values)))
            merged[spec.name] = attrs.evolve(
                known,
                values=values,
                dynamic=known.dynamic or spec.dynamic,
                minimum=min(known.minimum, spec.minimum),
                integer=known.integer and spec.integer,
            )
    return Vocabulary(tuple(merged.values()))


def _nearest(name: str, known: Iterable[str]) -> str:
    return did_you_mean(name, known) or "`phyai ops` and `phyai kernels` list those that are known"
