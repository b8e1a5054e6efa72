"""The whole action expert of π0.5 or π0 as one persistent kernel: ``csrc/expert``."""
