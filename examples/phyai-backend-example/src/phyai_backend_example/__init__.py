"""An example of a PhyAI backend: gated activations on a CPU without a temporary."""

__version__ = "0.1.0"
