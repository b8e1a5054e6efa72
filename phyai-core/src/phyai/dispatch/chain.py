"""A caller's own decomposition of an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from phyai.dispatch.site import Site


@attrs.frozen(eq=False)
class Chain:
    """How the caller computes an op from other call sites, where no kernel does it in one go.

    ``run`` takes the op's inputs, ``out`` and ``state``; ``sites`` are all that it calls. A restriction or numerics
    rule on one of them rules fused kernels out, as it does on the parts of a composite op.
    """

    run: Callable[..., Any]
    sites: tuple[Site, ...]
