"""The tree that layers form: which tensors they ask for, and loading them one layer at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from phyai_models.weights import TensorSpec, WeightSource


class Layer:
    """A part of a model. Its parts are the layers among its attributes, and in its lists and tuples.

    A layer that has parameters of its own overrides :meth:`tensors` and :meth:`load`; loading a layer
    binds its call sites, so that a layer's weights are complete, and in their final form, before the next
    layer's are read.
    """

    def parts(self) -> Iterator[Layer]:
        """The layers directly below this one, in the order in which they were made."""
        for value in vars(self).values():
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, Layer):
                    yield item

    def tensors(self) -> Iterator[TensorSpec]:
        """Every tensor that this layer and those below it take from a checkpoint."""
        for part in self.parts():
            yield from part.tensors()

    def load(self, source: WeightSource) -> None:
        """Read the parameters of this layer and those below it, and bind their call sites."""
        for part in self.parts():
            part.load(source)

    def refresh(self, source: WeightSource) -> None:
        """Read other values of the parameters that :meth:`load` read, into the same memory.

        Kernels stay prepared and captured CUDA graphs stay valid. Beside the parameters in use, those of one layer
        are held at a time.

        Raises:
            CallError: a kernel that was chosen cannot take new weights in place.
        """
        for part in self.parts():
            part.refresh(source)


class Unused(Layer):
    """Tensors that the checkpoint must hold and that this computation has no use for: checked, not read."""

    def __init__(self, specs: Iterable[TensorSpec]) -> None:
        self.specs = tuple(specs)

    def tensors(self) -> Iterator[TensorSpec]:
        yield from self.specs

    def load(self, source: WeightSource) -> None:
        pass

    def refresh(self, source: WeightSource) -> None:
        pass
