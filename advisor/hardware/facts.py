"""What a look at a machine can find out, and the pure parsers that read it from the system's own words.

Nothing here touches the machine: text and bytes in, facts out. :mod:`advisor.hardware.probes` fetches them,
:mod:`advisor.hardware.detect` turns facts into a :class:`Hardware`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

from advisor.base import Frozen
from advisor.hardware.machine import Backend
from advisor.llamacpp.find import EngineDevice

GIB = 2**30


class CpuFacts(Frozen):
    """A processor. ``cores`` counts physical cores (all sockets), ``sockets`` physical packages."""

    name: str = ""
    vendor: str = ""
    family: int | None = None
    model: int | None = None
    cores: int = 1
    threads: int = 1
    sockets: int = 1
    hypervisor: bool = False


class MemoryModule(Frozen):
    """One DIMM or soldered package: ``size`` [bytes], ``speed`` configured [MT/s], ``width`` data bits."""

    size: int
    speed: int | None = None
    type: str | None = None
    locator: str = ""
    bank: str = ""
    width: int | None = None


class GpuFacts(Frozen):
    """A graphics device as the system describes it; ``memory`` its own [bytes], ``bandwidth`` and ``link`` [GB/s]."""

    name: str
    vendor: str = ""
    memory: int | None = None
    shared_memory: int | None = None
    """System memory it may use besides [bytes]."""
    integrated: bool | None = None
    bandwidth: float | None = None
    bandwidth_source: str = ""
    link: float | None = None
    link_source: str = ""
    cores: int | None = None
    """GPU cores (Apple)."""
    bus: str = ""
    source: str = ""


class Facts(Frozen):
    """Everything that was found out about a machine; None or empty = not found out."""

    system: Literal["Linux", "Darwin", "Windows", "other"] = "other"
    board: str = ""
    """Product name of a single-board computer or system, e.g. from the device tree."""
    cpu: CpuFacts = CpuFacts()
    memory: int | None = None
    memory_limit: int | None = None
    """Memory that a container or a control group may use [bytes]."""
    cpu_limit: float | None = None
    """Cores that a container or a control group may use."""
    virtual: str | None = None
    """Kind of virtual machine or container, if it is one."""
    modules: tuple[MemoryModule, ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    engine: str | None = None
    """Which llama.cpp was asked for its devices."""
    engine_devices: tuple[EngineDevice, ...] = ()
    remarks: tuple[str, ...] = ()
    """What could not be read, one sentence each."""


# --- llama.cpp ----------------------------------------------------------------------------------------------------

_PREFIXES: tuple[tuple[str, Backend], ...] = (
    ("CUDA", "cuda"),
    ("ROCm", "rocm"),
    ("HIP", "rocm"),
    ("Vulkan", "vulkan"),
    ("MTL", "metal"),
    ("Metal", "metal"),
    ("SYCL", "sycl"),
    ("GPUOpenCL", "opencl"),
    ("OpenCL", "opencl"),
)


def backend_of(device_id: str) -> Backend | None:
    """The backend that names its devices so (``CUDA0``); None for CPU, RPC and unknown ones."""
    return next((backend for prefix, backend in _PREFIXES if device_id.startswith(prefix)), None)


def _json_list(text: str) -> list[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        return []
    values = value if isinstance(value, list) else [value]
    return [entry for entry in values if isinstance(entry, dict)]


def whole(value: object) -> int | None:
    """A positive whole number from JSON or text, else None."""
    try:
        number = int(float(str(value)))
    except (ValueError, OverflowError):
        return None
    return number if number > 0 else None


# --- NVIDIA -------------------------------------------------------------------------------------------------------

PCIE_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Payload rate of one PCIe lane by generation [GB/s]."""
_PCIE_SPEEDS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


def pcie_rate(generation: int | None, lanes: int | None) -> float | None:
    """Line rate of a PCIe link [GB/s], None if it is not known."""
    if generation in PCIE_LANE and lanes and 1 <= lanes <= 32:
        return round(PCIE_LANE[generation] * lanes, 1)
    return None


NVIDIA_QUERY = "name,memory.total,pcie.link.gen.max,pcie.link.width.max,pci.bus_id"
"""Fields asked of ``nvidia-smi --query-gpu=… --format=csv,noheader,nounits``."""


def parse_nvidia_smi(text: str) -> tuple[GpuFacts, ...]:
    """One GPU a line, fields as in :data:`NVIDIA_QUERY`; memory in MiB. A field may be "[N/A]"."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 5 or not fields[0]:
            continue
        name, memory, generation, lanes, bus = ", ".join(fields[:-4]), *fields[-4:]
        mib = whole(memory)
        gpus.append(
            GpuFacts(
                name=name,
                vendor="NVIDIA",
                memory=mib * 2**20 if mib else None,
                integrated=mib is None,
                link=pcie_rate(whole(generation), whole(lanes)),
                link_source=f"PCIe {generation}.0 x{lanes}, nvidia-smi",
                bus=bus,
                source="nvidia-smi",
            )
        )
    return tuple(gpus)


def parse_nvml(text: str) -> tuple[GpuFacts, ...]:
    """The JSON lines of :mod:`advisor.hardware.nvml`.

    Bandwidth = 2 x memory clock [MHz] x bus width [bits] / 8: the clock that NVML reports moves two bits a cycle.
    """
    gpus = []
    for entry in _json_list(text):
        name = str(entry.get("name", ""))
        if not name:
            continue
        clock, width = whole(entry.get("memory_clock_mhz")), whole(entry.get("bus_width_bits"))
        generation, lanes = whole(entry.get("pcie_generation")), whole(entry.get("pcie_lanes"))
        memory = whole(entry.get("memory_bytes"))
        gpus.append(
            GpuFacts(
                name=name,
                vendor="NVIDIA",
                memory=memory,
                integrated=memory is None,
                bandwidth=round(2 * clock * width / 8 / 1000, 1) if clock and width else None,
                bandwidth_source=f"NVML: 2 x {clock} MHz x {width} bit",
                link=pcie_rate(generation, lanes),
                link_source=f"PCIe {generation}.0 x{lanes}, NVML",
                bus=str(entry.get("bus", "")),
                source="NVML",
            )
        )
    return tuple(gpus)


# --- Linux --------------------------------------------------------------------------------------------------------


def parse_cpuinfo(text: str) -> CpuFacts:
    """``/proc/cpuinfo`` of x86 and ARM."""
    values: dict[str, str] = {}
    cores: set[tuple[str, str]] = set()
    packages: set[str] = set()
    threads = 0
    package = "0"
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if not colon:
            continue
        values.setdefault(key, value)
        if key == "processor":
            threads += value.isdigit()
        elif key == "physical id":
            package = value
            packages.add(value)
        elif key == "core id":
            cores.add((package, value))
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "0x41": "ARM", "0x61": "Apple", "0xc0": "Ampere"}
    maker = values.get("vendor_id") or values.get("CPU implementer", "")
    part = values.get("CPU part")
    return CpuFacts(
        name=values.get("model name") or values.get("Hardware") or values.get("Model", ""),
        vendor=vendor.get(maker, maker),
        family=whole(values.get("cpu family")),
        model=int(part, 16) if part and re.fullmatch(r"0x[0-9a-fA-F]+", part) else _model_number(values.get("model")),
        cores=len(cores) or threads or 1,
        threads=threads or 1,
        sockets=max(1, len(packages)),
        hypervisor="hypervisor" in values.get("flags", "").split(),
    )


def _model_number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def parse_meminfo(text: str) -> int | None:
    """``MemTotal`` of ``/proc/meminfo`` [bytes]."""
    match = re.search(r"(?m)^MemTotal:\s*(\d+) kB", text)
    return int(match[1]) * 1024 if match else None


def parse_udev_memory(text: str) -> tuple[MemoryModule, ...]:
    """Memory modules in udev's database entry ``+dmi:id``, which everybody may read (systemd 248 and later)."""
    values: dict[str, str] = dict(re.findall(r"(?m)^E:MEMORY_DEVICE_(\d+_\w+)=(.*)$", text))
    modules = []
    for index in sorted({int(key.split("_")[0]) for key in values}):

        def get(field: str, index: int = index) -> str:
            return values.get(f"{index}_{field}", "")

        size = whole(get("SIZE"))
        if get("PRESENT") == "0" or not size:
            continue
        modules.append(
            MemoryModule(
                size=size,
                speed=whole(get("CONFIGURED_SPEED_MTS")) or whole(get("SPEED_MTS")),
                type=get("TYPE") or None,
                locator=get("LOCATOR"),
                bank=get("BANK_LOCATOR"),
                width=whole(get("DATA_WIDTH")),
            )
        )
    return tuple(modules)


_SMBIOS_MEMORY = {
    0x18: "DDR3", 0x1A: "DDR4", 0x1B: "LPDDR", 0x1C: "LPDDR2", 0x1D: "LPDDR3", 0x1E: "LPDDR4", 0x22: "DDR5",
    0x23: "LPDDR5", 0x20: "HBM", 0x21: "HBM2", 0x24: "HBM3",
}  # fmt: skip


def parse_smbios(data: bytes) -> tuple[MemoryModule, ...]:
    """Memory modules (type 17) of a raw SMBIOS table, as in ``/sys/firmware/dmi/tables/DMI`` (root only).

    Offsets: DMTF DSP0134, section 7.18. A damaged table gives the modules before the damage.
    """
    modules = []
    at = 0
    while at + 4 <= len(data):
        kind, length = data[at], data[at + 1]
        if length < 4 or at + length > len(data) or kind == 127:
            break
        body = data[at : at + length]
        end = data.find(b"\0\0", at + length)
        if end < 0:
            break
        if kind == 17:
            strings = data[at + length : end].decode("ascii", "replace").split("\0")
            module = _smbios_module(body, strings)
            if module:
                modules.append(module)
        at = end + 2
    return tuple(modules)


def _smbios_module(body: bytes, strings: list[str]) -> MemoryModule | None:
    def word(offset: int, size: int = 2) -> int:
        return int.from_bytes(body[offset : offset + size], "little") if offset + size <= len(body) else 0

    def text(offset: int) -> str:
        index = word(offset, 1)
        return strings[index - 1] if 0 < index <= len(strings) else ""

    size = word(0x0C)
    if size in (0, 0xFFFF):
        return None
    if size == 0x7FFF:
        total = (word(0x1C, 4) & 0x7FFFFFFF) * 2**20
    else:
        total = (size & 0x7FFF) * (2**10 if size & 0x8000 else 2**20)
    speed = word(0x20) or word(0x15)
    if speed == 0xFFFF:
        speed = word(0x58, 4)
    width = word(0x0A)
    return MemoryModule(
        size=total,
        speed=speed or None,
        type=_SMBIOS_MEMORY.get(word(0x12, 1)),
        locator=text(0x10),
        bank=text(0x11),
        width=width if 0 < width < 0xFFFF else None,
    )


def parse_dmidecode(text: str) -> tuple[MemoryModule, ...]:
    """``dmidecode -t 17``."""
    modules = []
    for block in re.split(r"(?m)^Handle ", text)[1:]:
        values = {
            key.strip(): value.strip()
            for key, colon, value in (line.partition(":") for line in block.splitlines())
            if colon
        }
        size = re.fullmatch(r"(\d+) (MB|GB|TB)", values.get("Size", ""))
        if "Memory Device" not in block or not size:
            continue
        speed = re.match(r"\d+", values.get("Configured Memory Speed", "")) or re.match(r"\d+", values.get("Speed", ""))
        width = re.match(r"\d+", values.get("Data Width", ""))
        modules.append(
            MemoryModule(
                size=int(size[1]) * {"MB": 2**20, "GB": 2**30, "TB": 2**40}[size[2]],
                speed=int(speed[0]) if speed else None,
                type=values.get("Type") if values.get("Type") not in ("Unknown", "RAM", None) else None,
                locator=values.get("Locator", ""),
                bank=values.get("Bank Locator", ""),
                width=int(width[0]) if width else None,
            )
        )
    return tuple(modules)


def memory_bandwidth(modules: Iterable[MemoryModule]) -> tuple[float, str] | None:
    """Peak of the installed memory [GB/s] and how it was reckoned; None if speeds are missing.

    channels x MT/s x 8 bytes. Channels: what the slots are called; else, as firmware names them too freely, one per
    module. Soldered memory (LPDDR) counts by its data width.
    """
    present = [module for module in modules if module.speed]
    if not present:
        return None
    speed = min(module.speed or 0 for module in present)
    kind = present[0].type or "DDR"
    if kind.startswith("LPDDR") and all(module.width for module in present):
        bits = sum(module.width or 0 for module in present)
        return round(speed * bits / 8 / 1000, 1), f"{kind}-{speed}, {bits} bit"
    channels = _channels(present)
    plural = "s" if channels > 1 else ""
    return round(channels * speed * 8 / 1000, 1), f"{kind}-{speed}, {channels} channel{plural} x 8 bytes"


_CHANNEL_NAMES = (
    re.compile(r"(?:P(\d+)|CPU ?(\d+)|NODE ?(\d+))?.*?CHANNEL[ _-]?([A-P]|\d+)", re.IGNORECASE),
    re.compile(r"(?:P(\d+)|CPU ?(\d+)|NODE ?(\d+))?[ _-]*DIMM[ _-]?([A-P])\d?", re.IGNORECASE),
)


def _channels(modules: list[MemoryModule]) -> int:
    for pattern in _CHANNEL_NAMES:
        names = set()
        for module in modules:
            match = pattern.search(module.bank) or pattern.search(module.locator)
            if not match:
                break
            names.add(tuple((group or "").upper() for group in match.groups()))
        else:
            return len(names)
    return len(modules)


def parse_pci_ids(text: str, vendor: int, device: int) -> str | None:
    """Product name of a PCI device in the system's ``pci.ids``: the marketing name in brackets if there is one."""
    block = re.search(rf"(?ms)^{vendor:04x}  .*?(?=^[0-9a-f]{{4}}  |\Z)", text)
    line = re.search(rf"(?m)^\t{device:04x}  (.+)$", block[0]) if block else None
    if not line:
        return None
    bracket = re.search(r"\[(.+)\]", line[1])
    return bracket[1] if bracket else line[1].strip()


def parse_amdgpu_ids(text: str, device: int, revision: int) -> str | None:
    """Marketing name in libdrm's ``amdgpu.ids`` (lines of device, revision, name; hexadecimal)."""
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and not line.startswith("#"):
            try:
                if int(parts[0], 16) == device and int(parts[1], 16) == revision:
                    return parts[2]
            except ValueError:
                continue
    return None


def parse_link(speed: str, width: str) -> float | None:
    """PCIe rate [GB/s] of sysfs' ``max_link_speed`` ("16.0 GT/s PCIe") and ``max_link_width`` ("16")."""
    match = re.match(r"([\d.]+) GT/s", speed.strip())
    return pcie_rate(_PCIE_SPEEDS.get(float(match[1])), whole(width)) if match else None


def parse_cgroup(read: Callable[[str], str | None], membership: str) -> tuple[int | None, float | None]:
    """Memory [bytes] and cores that this process's control groups allow; None = no limit.

    Args:
        read: content of a file below ``/sys/fs/cgroup`` by its relative path, None if there is none.
        membership: ``/proc/self/cgroup``.
    """
    memory: list[int] = []
    cores: list[float] = []
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part and part != ".."]
        folders = ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
        for folder in folders:
            prefix = f"{folder}/" if folder else ""
            if not controllers:  # version 2
                memory += _limit(read(f"{prefix}memory.max"))
                quota = (read(f"{prefix}cpu.max") or "").split()
                if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
                    cores.append(int(quota[0]) / int(quota[1]))
            if "memory" in controllers.split(","):
                memory += _limit(read(f"memory/{prefix}memory.limit_in_bytes"))
            if "cpu" in controllers.split(","):
                quota_us = whole(read(f"cpu/{prefix}cpu.cfs_quota_us"))
                period = whole(read(f"cpu/{prefix}cpu.cfs_period_us"))
                if quota_us and period:
                    cores.append(quota_us / period)
    return min(memory, default=None), min(cores, default=None)


def _limit(text: str | None) -> list[int]:
    value = whole(text) if text else None
    return [value] if value and value < 2**60 else []


# --- macOS --------------------------------------------------------------------------------------------------------


def parse_sysctl(text: str) -> dict[str, str]:
    """Lines of ``sysctl a b c``: "key: value"."""
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines()) if key}


def parse_displays(text: str) -> tuple[GpuFacts, ...]:
    """``system_profiler SPDisplaysDataType -json``."""
    gpus = []
    for top in _json_list(text):
        for entry in top.get("SPDisplaysDataType", []):
            name = str(entry.get("sppci_model") or entry.get("_name", ""))
            apple = name.startswith("Apple")
            vram = re.match(r"(\d+) (MB|GB)", str(entry.get("spdisplays_vram", "")))
            gpus.append(
                GpuFacts(
                    name=name,
                    vendor="Apple" if apple else "",
                    memory=int(vram[1]) * {"MB": 2**20, "GB": 2**30}[vram[2]] if vram else None,
                    integrated=apple or not vram,
                    cores=whole(entry.get("sppci_cores")),
                    source="system_profiler",
                )
            )
    return tuple(gpu for gpu in gpus if gpu.name)


# --- Windows ------------------------------------------------------------------------------------------------------


def parse_windows(text: str) -> dict[str, Any]:
    """The JSON object of :data:`advisor.hardware.probes.WINDOWS_SCRIPT`; {} if it is none.

    Keys: ``cpu``, ``modules``, ``gpus``, ``system``; each a list of CIM objects (one object is a list of one).
    """
    values = _json_list(text)
    if not values:
        return {}
    found: dict[str, Any] = {}
    for key in ("cpu", "modules", "gpus", "system"):
        value = values[0].get(key)
        found[key] = [x for x in (value if isinstance(value, list) else [value]) if isinstance(x, dict)]
    return found


def windows_modules(entries: Iterable[dict[str, Any]]) -> tuple[MemoryModule, ...]:
    """``Win32_PhysicalMemory``."""
    return tuple(
        MemoryModule(
            size=size,
            speed=whole(entry.get("ConfiguredClockSpeed")) or whole(entry.get("Speed")),
            type=_SMBIOS_MEMORY.get(whole(entry.get("SMBIOSMemoryType")) or 0),
            locator=str(entry.get("DeviceLocator") or ""),
            bank=str(entry.get("BankLabel") or ""),
            width=whole(entry.get("DataWidth")),
        )
        for entry in entries
        if (size := whole(entry.get("Capacity")))
    )


def windows_gpus(entries: Iterable[dict[str, Any]]) -> tuple[GpuFacts, ...]:
    """Display adapters of the registry (``memory`` is HardwareInformation.qwMemorySize); virtual ones left out."""
    gpus = []
    for entry in entries:
        name = str(entry.get("name") or "")
        if not name or re.search(r"\b(basic|remote|virtual|parsec|hyper-v|citrix|meta)\b", name.lower()):
            continue
        low = name.lower()
        vendor = "NVIDIA" if "nvidia" in low else "Intel" if "intel" in low else "AMD" if "radeon" in low else ""
        gpus.append(GpuFacts(name=name, vendor=vendor, memory=whole(entry.get("memory")), source="registry"))
    return tuple(gpus)


def windows_cpu(entries: Iterable[dict[str, Any]], hypervisor: bool = False) -> CpuFacts:
    """``Win32_Processor``, one entry per socket."""
    sockets = list(entries)
    first = sockets[0] if sockets else {}
    maker = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
    return CpuFacts(
        name=str(first.get("Name") or "").strip(),
        vendor=maker.get(str(first.get("Manufacturer") or ""), str(first.get("Manufacturer") or "")),
        cores=sum(whole(entry.get("NumberOfCores")) or 0 for entry in sockets) or 1,
        threads=sum(whole(entry.get("NumberOfLogicalProcessors")) or 0 for entry in sockets) or 1,
        sockets=max(1, len(sockets)),
        hypervisor=hypervisor,
    )
