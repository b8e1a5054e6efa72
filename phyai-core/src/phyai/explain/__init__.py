"""Explaining decisions: completing an incomplete question, and showing the answer.

The answer comes from the same resolver as a dispatcher's, so what is explained is what would run.
"""

from phyai.explain.html import to_html
from phyai.explain.question import complete, explain_call
from phyai.explain.text import render, to_text

__all__ = ["complete", "explain_call", "render", "to_html", "to_text"]
