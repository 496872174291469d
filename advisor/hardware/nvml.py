"""Ask NVIDIA's management library for the GPUs: a script of its own, because a hanging driver must not hang us.

Run as ``python nvml.py``; prints a JSON list. Standard library only. Constants: nvml.h.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

_CLOCK_MEMORY = 2
LIBRARIES = {
    "win32": ("nvml.dll", r"C:\Program Files\NVIDIA Corporation\NVSMI\nvml.dll"),
    "linux": ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"),
}


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy_id", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


def query(library: Any) -> list[dict[str, Any]]:
    """Every GPU of an opened NVML: name, memory, widest bus and highest clock, link. What a GPU refuses is left out."""
    if library.nvmlInit_v2() != 0:
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        return [gpu for index in range(count.value) if (gpu := _device(library, index))]
    finally:
        library.nvmlShutdown()


def _device(library: Any, index: int) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return {}
    name = ctypes.create_string_buffer(96)
    if library.nvmlDeviceGetName(handle, name, ctypes.c_uint(96)) != 0:
        return {}
    gpu: dict[str, Any] = {"name": name.value.decode("utf-8", "replace")}
    memory = _Memory()
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
        gpu["memory_bytes"] = memory.total
    pci = _Pci()
    if library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == 0:
        gpu["bus"] = pci.bus_id.decode("ascii", "replace")
    for key, function, before in (
        ("bus_width_bits", "nvmlDeviceGetMemoryBusWidth", ()),
        ("memory_clock_mhz", "nvmlDeviceGetMaxClockInfo", (ctypes.c_uint(_CLOCK_MEMORY),)),
        ("pcie_generation", "nvmlDeviceGetMaxPcieLinkGeneration", ()),
        ("pcie_lanes", "nvmlDeviceGetMaxPcieLinkWidth", ()),
    ):
        value = ctypes.c_uint()
        call = getattr(library, function, None)  # old drivers lack some
        if call is not None and call(handle, *before, ctypes.byref(value)) == 0:
            gpu[key] = value.value
    return gpu


def main() -> None:
    """Print what the first library that loads says; an empty list if there is none."""
    found: list[dict[str, Any]] = []
    for name in LIBRARIES.get(sys.platform, ()):
        try:
            found = query(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
        break
    print(json.dumps(found))


if __name__ == "__main__":
    main()
