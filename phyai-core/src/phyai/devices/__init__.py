"""The device catalogue: what is publicly known of GPUs, so that PhyAI can answer for one that is not here.

>>> h200 = find_device("h200")
>>> h200.arch, h200.sm_count, h200.memory_gb
('sm90', 132, 141)
>>> find_device("NVIDIA H200").name, find_device("sm120").name
('h200', 'rtx5090')
"""

from phyai.devices.catalogue import DTYPES_WITH_PEAKS, DeviceSpec, find_device, known_devices

__all__ = ["DTYPES_WITH_PEAKS", "DeviceSpec", "find_device", "known_devices"]
