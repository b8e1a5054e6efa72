"""Plug-ins: how backends, models and importers that others publish come in.

A distribution names a module in one of the entry-point groups ``phyai.backends``, ``phyai.models``,
``phyai.importers``. The module states ``PLUGIN_API = 1`` and marks functions with :data:`hookimpl`::

    from phyai.plugins import hookimpl

    PLUGIN_API = 1

    @hookimpl
    def phyai_kernels():
        return [Kernel(...), ...]

:func:`discover` finds them all. One that is broken costs only itself: nothing of it is registered, and
``phyai backends`` shows a row that says what is wrong and what to do.
"""

from phyai.plugins.hooks import GROUPS, PLUGIN_API, Command, hookimpl
from phyai.plugins.loading import discover
from phyai.plugins.records import Plugin, PluginState, PluginStatus

__all__ = ["GROUPS", "PLUGIN_API", "Command", "Plugin", "PluginState", "PluginStatus", "discover", "hookimpl"]
