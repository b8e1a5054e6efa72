"""How messages name what to install."""

from __future__ import annotations


def install(distribution: str) -> str:
    """What to do where a distribution of PhyAI's, or an extra of one, is not installed.

    Where it comes from is for the README to say: the repository's folders, or an index.

    >>> install("phyai-backend-cuda[cu13]")
    "install phyai-backend-cuda[cu13] (see Install in PhyAI's README)"
    """
    return f"install {distribution} (see Install in PhyAI's README)"
