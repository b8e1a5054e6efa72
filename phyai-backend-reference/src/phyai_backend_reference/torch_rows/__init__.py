"""``torch.*``: torch's own library calls as rows."""

from phyai.kernel import Kernel

KERNELS: tuple[Kernel, ...] = ()
