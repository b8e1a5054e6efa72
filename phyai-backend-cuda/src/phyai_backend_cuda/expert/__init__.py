"""The whole action expert of π0.5 as one persistent kernel: ``csrc/expert``."""
