"""Equal tensors of many layers as one, without copying them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


class Stack:
    """Tensors of one shape and dtype, as a weight with a first dimension more. Indexing gives each of them.

    >>> stack = Stack([torch.zeros(2, 3), torch.ones(2, 3)])
    >>> stack.shape, int(stack[1].sum()), len(stack)
    ((2, 2, 3), 6, 2)
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tuple(tensors)
        first = self._tensors[0]
        self.shape = (len(self._tensors), *first.shape)
        self.dtype, self.device = first.dtype, first.device

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._tensors[index]

    def copy_(self, other: Sequence[torch.Tensor]) -> Stack:
        """Write ``other``'s values over this one's, in its memory.

        >>> Stack([torch.zeros(2), torch.zeros(2)]).copy_([torch.ones(2), torch.ones(2)])[1].tolist()
        [1.0, 1.0]
        """
        for mine, new in zip(self._tensors, other, strict=True):
            mine.copy_(new)
        return self

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._tensors)
