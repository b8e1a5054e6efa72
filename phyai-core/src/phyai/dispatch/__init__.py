"""Deciding once, then getting out of the way.

A :class:`Dispatcher` makes call sites for the layers of one engine; a :class:`Site` decides on its first call
of a kind, remembers, and can be frozen. See :mod:`phyai.dispatch.site` for what a call costs.
"""

from phyai.dispatch.chain import Chain
from phyai.dispatch.dispatcher import Dispatcher
from phyai.dispatch.replacement import PolicyChange
from phyai.dispatch.report import Report
from phyai.dispatch.resources import EngineResources
from phyai.dispatch.site import Site

__all__ = ["Chain", "Dispatcher", "EngineResources", "PolicyChange", "Report", "Site"]
