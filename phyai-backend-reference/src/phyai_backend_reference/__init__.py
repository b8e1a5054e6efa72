"""Plain-PyTorch kernels for every op (``reference.*``), and torch's own library calls as rows (``torch.*``)."""

__version__ = "0.1.0"
