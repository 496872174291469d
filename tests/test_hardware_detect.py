"""Detection: what the system's own words mean, on every system, with and without GPU, root and tools."""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.base import Figure
from advisor.errors import InputError, UnknownHardwareError
from advisor.hardware import facts as parse
from advisor.hardware import nvml, probes
from advisor.hardware.bandwidth import Streaming, assumed_bandwidth, generation, measure
from advisor.hardware.detect import assemble, detect, usable_cores
from advisor.hardware.facts import CpuFacts, Facts, GpuFacts, MemoryModule
from advisor.hardware.machine import Placement
from advisor.hardware.resolve import by_numbers, resolve
from advisor.llamacpp.find import EngineDevice

GIB = 2**30
RYZEN = CpuFacts(name="AMD Ryzen 9 7950X 16-Core Processor", vendor="AMD", family=25, model=97, cores=16, threads=32)
DDR5 = tuple(
    MemoryModule(size=32 * GIB, speed=6000, type="DDR5", locator="DIMM 1", bank=f"P0 CHANNEL {c}", width=64)
    for c in "AB"
)


def numbers(figure: Figure | None) -> tuple[float, str] | None:
    return (figure.value, figure.kind) if figure else None


# --- parsers ------------------------------------------------------------------------------------------------------

NVIDIA_SMI = """\
NVIDIA GeForce RTX 3090, 24576, 4, 16, 00000000:01:00.0
NVIDIA GeForce RTX 3060, 12288, 4, 4, 00000000:05:00.0
NVIDIA GB10, [N/A], 5, [N/A], 0000000F:01:00.0
"""


def test_nvidia_smi() -> None:
    first, second, third = parse.parse_nvidia_smi(NVIDIA_SMI)
    assert (first.name, first.memory, first.link) == ("NVIDIA GeForce RTX 3090", 24 * GIB, 31.5)
    assert second.link == 7.9
    assert (third.memory, third.integrated, third.link) == (None, True, None)
    assert parse.parse_nvidia_smi("Failed to initialize NVML: Driver/library version mismatch\n") == ()


def test_nvml_tells_the_bandwidth_of_cards_nobody_described() -> None:
    (gpu,) = parse.parse_nvml(
        json.dumps(
            [{"name": "NVIDIA RTX 9999", "memory_bytes": 48 * GIB, "bus_width_bits": 384, "memory_clock_mhz": 9751,
              "pcie_generation": 4, "pcie_lanes": 16, "bus": "0000:01:00.0"}, {}]
        )
    )  # fmt: skip
    assert gpu.bandwidth == pytest.approx(936.1)
    assert gpu.link == 31.5
    assert parse.parse_nvml("") == ()


class FakeNvml:
    """NVML's C functions for one card that refuses to tell its bus width."""

    def __init__(self) -> None:
        self.closed = False

    def nvmlInit_v2(self) -> int:  # noqa: N802 - NVML's names
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.closed = True
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        return 0 if index.value == 0 else 15

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA GeForce RTX 3090"
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.total = 24 * GIB
        return 0

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, pci: Any) -> int:  # noqa: N802
        pci._obj.bus_id = b"00000000:01:00.0"
        return 0

    def nvmlDeviceGetMemoryBusWidth(self, handle: Any, value: Any) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: ctypes.c_uint, value: Any) -> int:  # noqa: N802
        assert kind.value == 2
        value._obj.value = 9751
        return 0

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any, value: Any) -> int:  # noqa: N802
        value._obj.value = 4
        return 0


def test_nvml_script_asks_the_library_and_closes_it() -> None:
    library = FakeNvml()
    assert nvml.query(library) == [
        {"name": "NVIDIA GeForce RTX 3090", "memory_bytes": 24 * GIB, "bus": "00000000:01:00.0",
         "memory_clock_mhz": 9751, "pcie_generation": 4}
    ]  # fmt: skip
    assert library.closed


def test_nvml_script_without_the_library(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LIBRARIES", {sys.platform: ("libno-such-library.so.1",)})
    nvml.main()
    assert capsys.readouterr().out == "[]\n"


CPUINFO_X86 = """\
processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 143
model name	: Intel(R) Xeon(R) Platinum 8480+
physical id	: 0
core id		: 0
flags		: fpu avx512f hypervisor
processor	: 1
physical id	: 0
core id		: 0
processor	: 2
physical id	: 1
core id		: 0
processor	: 3
physical id	: 1
core id		: 1
"""
CPUINFO_ARM = """\
processor	: 0
BogoMIPS	: 108.00
CPU implementer	: 0x41
CPU part	: 0xd40
processor	: 1
CPU implementer	: 0x41
CPU part	: 0xd40
"""


def test_cpuinfo() -> None:
    x86 = parse.parse_cpuinfo(CPUINFO_X86)
    assert (x86.vendor, x86.family, x86.model, x86.cores, x86.threads, x86.sockets) == ("Intel", 6, 143, 3, 4, 2)
    assert x86.hypervisor
    arm = parse.parse_cpuinfo(CPUINFO_ARM)
    assert (arm.vendor, arm.model, arm.cores, arm.hypervisor) == ("ARM", 0xD40, 2, False)
    assert parse.parse_cpuinfo("").cores == 1


UDEV = """\
I:8421
E:MEMORY_ARRAY_NUM_DEVICES=4
E:MEMORY_DEVICE_0_SIZE=34359738368
E:MEMORY_DEVICE_0_TYPE=DDR5
E:MEMORY_DEVICE_0_SPEED_MTS=6400
E:MEMORY_DEVICE_0_CONFIGURED_SPEED_MTS=5200
E:MEMORY_DEVICE_0_LOCATOR=DIMM 1
E:MEMORY_DEVICE_0_BANK_LOCATOR=P0 CHANNEL A
E:MEMORY_DEVICE_1_PRESENT=0
E:MEMORY_DEVICE_1_TYPE=Unknown
E:MEMORY_DEVICE_10_SIZE=34359738368
E:MEMORY_DEVICE_10_TYPE=DDR5
E:MEMORY_DEVICE_10_CONFIGURED_SPEED_MTS=5200
E:MEMORY_DEVICE_10_LOCATOR=DIMM 1
E:MEMORY_DEVICE_10_BANK_LOCATOR=P0 CHANNEL B
"""
DMIDECODE = """\
# dmidecode 3.5
Handle 0x0040, DMI type 17, 92 bytes
Memory Device
	Data Width: 64 bits
	Size: 32 GB
	Locator: DIMM_A2
	Bank Locator: BANK 0
	Type: DDR4
	Speed: 3600 MT/s
	Configured Memory Speed: 3200 MT/s

Handle 0x0041, DMI type 17, 92 bytes
Memory Device
	Size: No Module Installed
	Locator: DIMM_A1

Handle 0x0042, DMI type 17, 92 bytes
Memory Device
	Data Width: 64 bits
	Size: 32 GB
	Locator: DIMM_B2
	Type: DDR4
	Configured Memory Speed: 3200 MT/s
"""


def test_memory_modules_without_and_with_root() -> None:
    modules = parse.parse_udev_memory(UDEV)
    assert [module.speed for module in modules] == [5200, 5200]  # configured, not what is printed on the stick
    assert parse.memory_bandwidth(modules) == (83.2, "DDR5-5200, 2 channels x 8 bytes")
    modules = parse.parse_dmidecode(DMIDECODE)
    assert [module.size for module in modules] == [32 * GIB] * 2
    assert parse.memory_bandwidth(modules) == (51.2, "DDR4-3200, 2 channels x 8 bytes")
    assert parse.parse_udev_memory("") == parse.parse_dmidecode("") == ()
    assert parse.memory_bandwidth([MemoryModule(size=GIB)]) is None


def module(locator: str = "", bank: str = "", speed: int = 3200, kind: str = "DDR4", width: int = 64) -> MemoryModule:
    return MemoryModule(size=8 * GIB, speed=speed, type=kind, locator=locator, bank=bank, width=width)


@pytest.mark.parametrize(
    ("modules", "gigabytes_per_second"),
    [
        ([module("DIMM_A1"), module("DIMM_A2"), module("DIMM_B1"), module("DIMM_B2")], 51.2),
        ([module("ChannelA-DIMM0"), module("ChannelB-DIMM0")], 51.2),
        ([module("Controller0-ChannelA"), module("Controller0-ChannelB")], 51.2),
        ([module("DIMM 0", f"P{socket} CHANNEL {c}") for socket in (0, 1) for c in "ABCDEFGH"], 409.6),
        ([module("PROC 1 DIMM 1")], 25.6),
        ([module("DIMM_A1", speed=3200), module("DIMM_B1", speed=2400)], 38.4),
        ([module(kind="LPDDR5", speed=8000, width=32) for _ in range(8)], 256.0),
    ],
)  # fmt: skip
def test_channels_are_counted_by_what_the_slots_are_called(
    modules: list[MemoryModule], gigabytes_per_second: float
) -> None:
    found = parse.memory_bandwidth(modules)
    assert found is not None
    assert found[0] == gigabytes_per_second


def smbios(entries: list[dict[str, int | str]]) -> bytes:
    """A raw SMBIOS table with one type 17 structure per entry, behind a structure of another type."""
    table = bytes([1, 8, 0, 0, 1, 0, 0, 0]) + b"A system\0\0"
    for entry in entries:
        body = bytearray(0x5C)
        body[0], body[1] = 17, len(body)
        body[0x0A:0x0C] = int(entry.get("width", 64)).to_bytes(2, "little")
        body[0x0C:0x0E] = int(entry["size"]).to_bytes(2, "little")
        body[0x10], body[0x11] = 1, 2
        body[0x12] = int(entry.get("type", 0x22))
        body[0x1C:0x20] = int(entry.get("extended", 0)).to_bytes(4, "little")
        body[0x20:0x22] = int(entry.get("speed", 5600)).to_bytes(2, "little")
        table += bytes(body) + f"{entry['locator']}\0{entry.get('bank', 'BANK 0')}\0\0".encode()
    return table + bytes([127, 4, 0, 0]) + b"\0\0"


def test_raw_smbios_table() -> None:
    table = smbios(
        [
            {"size": 16 * 1024, "locator": "DIMM_A1"},
            {"size": 0, "locator": "DIMM_A2"},
            {"size": 0x7FFF, "extended": 48 * 1024, "locator": "DIMM_B1"},
        ]
    )
    first, second = parse.parse_smbios(table)
    assert (first.size, first.speed, first.type, first.locator, first.width) == (16 * GIB, 5600, "DDR5", "DIMM_A1", 64)
    assert second.size == 48 * GIB
    assert parse.memory_bandwidth((first, second)) == (89.6, "DDR5-5600, 2 channels x 8 bytes")


@given(st.binary(max_size=300), st.integers(0, 250))
def test_damaged_smbios_tables_do_no_harm(noise: bytes, cut: int) -> None:
    table = smbios([{"size": 16 * 1024, "locator": "DIMM_A1"}])
    for data in (noise, table[:cut], table[:cut] + noise):
        for found in parse.parse_smbios(data):
            assert found.size > 0


def test_cgroup_limits() -> None:
    files = {"user.slice/memory.max": "8589934592\n", "memory.max": "max\n", "user.slice/cpu.max": "150000 100000\n"}
    assert parse.parse_cgroup(files.get, "0::/user.slice/a.scope\n") == (8 * GIB, 1.5)
    version1 = {
        "memory/docker/memory.limit_in_bytes": str(4 * GIB),
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/docker/cpu.cfs_quota_us": "200000",
        "cpu/docker/cpu.cfs_period_us": "100000",
    }
    assert parse.parse_cgroup(version1.get, "4:memory:/docker\n3:cpu,cpuacct:/docker\n") == (4 * GIB, 2.0)
    assert parse.parse_cgroup({}.get, "0::/../..\n") == (None, None)
    assert parse.parse_cgroup({"cpu.max": "100000 0"}.get, "0::/") == (None, None)


def test_pci_and_amdgpu_names() -> None:
    ids = "1002  AMD [AMD/ATI]\n\t744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]\n8086  Intel\n\t744c  Other\n"
    assert parse.parse_pci_ids(ids, 0x1002, 0x744C) == "Radeon RX 7900 XT/7900 XTX"
    assert parse.parse_pci_ids(ids, 0x8086, 0x744C) == "Other"
    assert parse.parse_pci_ids(ids, 0x10DE, 0x744C) is None
    amd = "# List\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT\n"
    assert parse.parse_amdgpu_ids(amd, 0x744C, 0xCC) == "AMD Radeon RX 7900 XT"
    assert parse.parse_amdgpu_ids(amd, 0x744C, 0x01) is None
    assert parse.parse_link("16.0 GT/s PCIe\n", "8\n") == 15.8
    assert parse.parse_link("Unknown", "16") is None


# --- whole machines -----------------------------------------------------------------------------------------------


def test_two_cards_with_a_readable_host() -> None:
    gpus = parse.parse_nvidia_smi("\n".join(NVIDIA_SMI.splitlines()[:2]))
    hardware = assemble(Facts(system="Linux", cpu=RYZEN, memory=62 * GIB, modules=DDR5, gpus=gpus))
    assert [device.slug for device in hardware.devices] == ["rtx-3090", "rtx-3060"]
    assert hardware.backend == "cuda"
    assert hardware.host is not None
    assert numbers(hardware.host.bandwidth) == (96.0, "published")
    assert numbers(hardware.host.memory) == (62.0, "measured")
    assert numbers(hardware.link) == (25.2, "published")
    assert hardware.device.memory == Figure(value=24.0, unit="GB", kind="measured", source="nvidia-smi")
    assert hardware.assumptions == ()


def test_a_card_without_profile_is_what_its_driver_says() -> None:
    gpu = GpuFacts(name="NVIDIA RTX 9999", vendor="NVIDIA", memory=48 * GIB, bandwidth=2000.0, bandwidth_source="NVML")
    hardware = assemble(Facts(cpu=RYZEN, modules=DDR5, gpus=(gpu,)))
    assert numbers(hardware.device.bandwidth) == (2000.0, "published")
    assert any("No profile knows NVIDIA RTX 9999" in sentence for sentence in hardware.assumptions)
    silent = assemble(Facts(cpu=RYZEN, gpus=(gpu.model_copy(update={"bandwidth": None}),)))
    assert silent.device.bandwidth is None
    assert any("--bandwidth" in sentence for sentence in silent.assumptions)


def test_a_driver_that_contradicts_the_profile_is_believed_aloud() -> None:
    gpu = GpuFacts(name="NVIDIA GeForce RTX 3090", memory=24 * GIB, bandwidth=468.0, bandwidth_source="NVML")
    hardware = assemble(Facts(cpu=RYZEN, gpus=(gpu,)))
    assert numbers(hardware.device.bandwidth) == (468.0, "published")
    assert any("936.2" in sentence for sentence in hardware.assumptions)


def strix_halo(root: Path) -> Path:
    """The files of a Strix Halo machine that the probe reads."""
    files = {
        "proc/cpuinfo": "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 26\nmodel : 112\n"
        "model name : AMD RYZEN AI MAX+ 395 w/ Radeon 8060S\nphysical id : 0\ncore id : 0\n",
        "proc/meminfo": "MemTotal:       131071000 kB\n",
        "proc/self/cgroup": "0::/user.slice\n",
        "sys/class/dmi/id/sys_vendor": "Framework\n",
        "sys/class/drm/card1/device/vendor": "0x1002\n",
        "sys/class/drm/card1/device/device": "0x1586\n",
        "sys/class/drm/card1/device/revision": "0xc1\n",
        "sys/class/drm/card1/device/mem_info_vram_total": "536870912\n",
        "sys/class/drm/card1/device/mem_info_gtt_total": "67108864000\n",
        "sys/class/drm/card1-DP-1/status": "connected\n",
        "usr/share/libdrm/amdgpu.ids": "1586,\tC1,\tAMD Radeon Graphics\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_strix_halo_from_its_files(tmp_path: Path) -> None:
    found = probes.linux(strix_halo(tmp_path))
    assert [gpu.source for gpu in found.gpus] == ["amdgpu"]
    hardware = assemble(found)
    assert hardware.device.slug == "ryzen-ai-max-395"
    assert hardware.host is None
    assert hardware.backend == "vulkan"
    assert numbers(hardware.device.memory) == (63.0, "measured")  # half a gigabyte of VRAM and the GTT limit
    assert any("ttm.pages_limit" in sentence for sentence in hardware.assumptions)
    listed = found.model_copy(
        update={
            "engine": "llama-server",
            "engine_devices": (
                EngineDevice(name="ROCm0", description="AMD Radeon Graphics", memory=120 * GIB, free=118 * GIB),
            ),
        }
    )
    asked = assemble(listed)
    assert asked.backend == "rocm"  # what the engine was built for
    assert numbers(asked.device.memory) == (120.0, "measured")


def test_a_laptop_with_its_own_memory_speed() -> None:
    cpu = CpuFacts(name="AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", vendor="AMD", family=25, model=116, cores=8)
    gpu = GpuFacts(name="AMD Radeon 780M", vendor="AMD", memory=GIB // 2, shared_memory=14 * GIB, source="amdgpu")
    modules = (module("DIMM 0", "P0 CHANNEL A", 4800, "DDR5"), module("DIMM 0", "P0 CHANNEL B", 4800, "DDR5"))
    slow = assemble(Facts(cpu=cpu, memory=31 * GIB, gpus=(gpu,), modules=modules))
    assert slow.device.slug == "ryzen-7-7840hs"
    assert numbers(slow.device.bandwidth) == (76.8, "published")
    unknown = assemble(Facts(cpu=cpu, memory=31 * GIB, gpus=(gpu,)))
    assert numbers(unknown.device.bandwidth) == (89.6, "published")
    assert any("could not be read" in sentence for sentence in unknown.assumptions)


def test_mac() -> None:
    displays = json.dumps(
        {"SPDisplaysDataType": [{"_name": "Apple M4 Max", "sppci_model": "Apple M4 Max", "sppci_cores": "32"}]}
    )
    facts = Facts(
        system="Darwin",
        cpu=CpuFacts(name="Apple M4 Max", vendor="Apple", cores=14, threads=14),
        memory=36 * GIB,
        gpus=parse.parse_displays(displays),
    )
    hardware = assemble(facts)
    assert (hardware.device.slug, hardware.backend, hardware.host) == ("apple-m4-max-32c", "metal", None)
    assert numbers(hardware.device.memory) == (36.0, "measured")
    unsaid = assemble(
        facts.model_copy(update={"gpus": (GpuFacts(name="Apple M4 Max", vendor="Apple", integrated=True),)})
    )
    assert unsaid.device.slug == "apple-m4-max-40c"
    assert any("is assumed" in sentence for sentence in unsaid.assumptions)
    assert parse.parse_sysctl("hw.memsize: 38654705664\n") == {"hw.memsize": "38654705664"}


WINDOWS = {
    "cpu": {"Name": "13th Gen Intel(R) Core(TM) i7-13700K", "Manufacturer": "GenuineIntel", "NumberOfCores": 16,
            "NumberOfLogicalProcessors": 24},
    "modules": [
        {"Capacity": 17179869184, "ConfiguredClockSpeed": 5600, "SMBIOSMemoryType": 34, "DeviceLocator": slot}
        for slot in ("Controller0-DIMMA2", "Controller1-DIMMB2")
    ],
    "gpus": [
        {"name": "AMD Radeon RX 7900 XTX", "memory": str(24 * GIB)},
        {"name": "Intel(R) UHD Graphics 770", "memory": ""},
        {"name": "Microsoft Basic Display Adapter", "memory": ""},
    ],
    "system": [{"Manufacturer": "ASUS", "Model": "System Product Name", "HypervisorPresent": True}],
}  # fmt: skip


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "run", lambda command, *rest, **more: json.dumps(WINDOWS))
    monkeypatch.setattr(probes.shutil, "which", lambda name: "powershell.exe" if name == "powershell" else None)
    found = probes.windows()
    assert found.virtual is None  # Windows itself runs on its hypervisor
    hardware = assemble(found)
    assert [device.slug for device in hardware.devices] == ["rx-7900-xtx"]
    assert hardware.backend == "vulkan"
    assert hardware.host is not None
    assert numbers(hardware.host.bandwidth) == (89.6, "published")
    assert hardware.host.name == "13th Gen Intel Core i7-13700K"


def test_windows_without_powershell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes.shutil, "which", lambda name: None)
    hardware = assemble(probes.windows())
    assert hardware.backend == "cpu"
    assert any("PowerShell" in sentence for sentence in hardware.assumptions)


def test_no_gpu_no_root_no_tools() -> None:
    hardware = assemble(Facts(system="Linux", cpu=RYZEN, memory=32 * GIB))
    assert (hardware.backend, hardware.host, hardware.link) == ("cpu", None, None)
    assert numbers(hardware.device.bandwidth) == (83.2, "assumed")
    assert hardware.device.cores == 16
    assert any("could not be read" in sentence and "--measure" in sentence for sentence in hardware.assumptions)


def test_a_slice_of_a_server() -> None:
    milan = CpuFacts(name="AMD EPYC", vendor="AMD", family=25, model=1, cores=2, threads=2, hypervisor=True)
    hardware = assemble(Facts(cpu=milan, memory=24 * GIB, virtual="KVM"))
    assert numbers(hardware.device.bandwidth) == (32.0, "assumed")
    assert "EPYC Milan" in hardware.assumptions[0]
    whole = assemble(Facts(cpu=milan.model_copy(update={"cores": 64, "hypervisor": False, "sockets": 2})))
    assert numbers(whole.device.bandwidth) == (409.6, "assumed")


def test_a_container_with_less_memory_and_fewer_cores() -> None:
    facts = Facts(cpu=RYZEN, memory=64 * GIB, memory_limit=8 * GIB, cpu_limit=4.0, virtual="container")
    hardware = assemble(facts)
    assert usable_cores(facts) == 4
    assert numbers(hardware.device.memory) == (8.0, "measured")
    assert "limit" in hardware.device.memory.source  # type: ignore[union-attr]
    assert hardware.device.cores == 4
    assert any("Only 4 of 16 cores" in sentence for sentence in hardware.assumptions)


def test_boards_are_known_by_their_device_tree(tmp_path: Path) -> None:
    root = tmp_path
    (root / "proc/device-tree").mkdir(parents=True)
    (root / "proc/device-tree/model").write_bytes(b"Raspberry Pi 5 Model B Rev 1.0\0")
    (root / "proc/cpuinfo").write_text(CPUINFO_ARM)
    (root / "proc/meminfo").write_text("MemTotal: 8257536 kB\n")
    pi = assemble(probes.linux(root))
    assert pi.device.slug == "raspberry-pi-5"
    assert numbers(pi.device.bandwidth) == (17.1, "published")
    assert numbers(pi.device.memory) == (7.9, "measured")
    jetson = assemble(Facts(board="NVIDIA Jetson AGX Orin Developer Kit", memory=61 * GIB))
    assert (jetson.device.slug, jetson.backend) == ("jetson-agx-orin-64gb", "cuda")
    spark = assemble(Facts(memory=119 * GIB, gpus=parse.parse_nvidia_smi(NVIDIA_SMI.splitlines()[2])))
    assert (spark.device.slug, numbers(spark.device.memory)) == ("dgx-spark-gb10", (119.0, "measured"))


def test_software_renderers_are_no_gpu() -> None:
    engine = (EngineDevice(name="Vulkan0", description="llvmpipe (LLVM 19.1.1, 256 bits)", memory=32 * GIB),)
    hardware = assemble(Facts(cpu=RYZEN, engine="llama-server", engine_devices=engine))
    assert hardware.backend == "cpu"
    assert hardware.device.is_cpu


def test_the_engine_names_what_the_system_does_not() -> None:
    engine = (EngineDevice(name="Vulkan0", description="AMD Radeon RX 7900 XTX (RADV NAVI31)", memory=24 * GIB),)
    hardware = assemble(Facts(cpu=RYZEN, engine="llama-server", engine_devices=engine))
    assert hardware.device.slug == "rx-7900-xtx"
    assert hardware.backend == "vulkan"


def test_an_engine_without_gpu_support_is_pointed_out() -> None:
    gpu = GpuFacts(name="NVIDIA GeForce RTX 3090", memory=24 * GIB)
    hardware = assemble(Facts(cpu=RYZEN, gpus=(gpu,), engine="llama-server"))
    assert hardware.backend == "cuda"
    assert any("lists no GPU" in sentence for sentence in hardware.assumptions)


def test_an_integrated_gpu_beside_a_card_is_left_out() -> None:
    igpu = GpuFacts(name="AMD Radeon 780M", vendor="AMD", memory=GIB // 2, shared_memory=14 * GIB)
    card = GpuFacts(name="NVIDIA GeForce RTX 4070 Laptop GPU", vendor="NVIDIA", memory=8 * GIB)
    hardware = assemble(Facts(cpu=RYZEN, gpus=(igpu, card)))
    assert [device.slug for device in hardware.devices] == ["rtx-4070-laptop"]
    assert any("integrated graphics are left out" in sentence for sentence in hardware.assumptions)


def test_a_measured_bandwidth_replaces_the_assumption() -> None:
    streaming = Streaming(median=39.0, low=38.0, high=41.0, threads=8, runs=7)
    hardware = assemble(Facts(cpu=RYZEN), streaming)
    assert numbers(hardware.device.bandwidth) == (52.0, "measured")
    assert hardware.assumptions == ()
    noisy = assemble(Facts(cpu=RYZEN), streaming.model_copy(update={"high": 80.0}))
    assert any("idle" in sentence for sentence in noisy.assumptions)


@pytest.mark.parametrize(
    ("cpu", "label"),
    [
        (CpuFacts(name="AMD EPYC 9654 96-Core Processor", vendor="AMD", family=25, model=17, cores=96), "EPYC Genoa"),
        (CpuFacts(name="AMD Ryzen 9 7950X", vendor="AMD", family=25, model=97), "Ryzen 7000 to 9000"),
        (CpuFacts(name="AMD Ryzen 7 5800X3D 8-Core Processor", vendor="AMD", family=25), "Ryzen 3000 to 5000"),
        (CpuFacts(name="AMD Ryzen Threadripper PRO 5975WX 32-Cores", vendor="AMD", family=25), "Threadripper PRO"),
        (CpuFacts(name="Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", vendor="Intel"), "Core of the 6th to 9th generation"),
        (CpuFacts(name="12th Gen Intel(R) Core(TM) i7-12700H", vendor="Intel"), "Core of the 12th generation"),
        (CpuFacts(name="Intel(R) Core(TM) Ultra 9 285K", vendor="Intel"), "Core Ultra"),
        (CpuFacts(name="Intel(R) Xeon(R) CPU", vendor="Intel", family=6, model=85), "Xeon Skylake or Cascade Lake"),
        (CpuFacts(vendor="ARM", model=0xD40), "Neoverse V1 or N2"),
    ],
)  # fmt: skip
def test_processor_generations(cpu: CpuFacts, label: str) -> None:
    found = generation(cpu)
    assert found is not None
    assert found.label == label
    figure, sentence = assumed_bandwidth(cpu, cores=cpu.cores, shared=False)
    assert figure.kind == "assumed"
    assert label in sentence


def test_an_unknown_processor_is_a_modest_desktop() -> None:
    figure, sentence = assumed_bandwidth(CpuFacts(name="Zhaoxin KX-7000"), cores=8, shared=False)
    assert figure.value == 51.2
    assert "not known" in sentence


# --- the machine the tests run on ---------------------------------------------------------------------------------


def test_this_machine() -> None:
    hardware = detect()
    assert hardware.source == "detected"
    assert hardware.devices
    for device in (*hardware.devices, *([hardware.host] if hardware.host else [])):
        for figure in (device.bandwidth, device.memory):
            if figure is not None:
                assert figure.value > 0
                assert figure.source
    assumed = [d for d in hardware.devices if d.bandwidth is not None and d.bandwidth.kind == "assumed"]
    assert not assumed or hardware.assumptions


def test_measuring_takes_every_thread_and_gives_a_spread() -> None:
    found = measure(2, megabytes=32, runs=3)
    assert 0 < found.low <= found.median <= found.high
    assert (found.threads, found.runs) == (2, 3)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX scripts and signals")
def test_tools_that_hang_fail_or_are_missing(tmp_path: Path) -> None:
    child = tmp_path / "child.pid"
    slow = script(
        tmp_path / "slow",
        "import os, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(child)!r}, 'w').write(str(p.pid))\ntime.sleep(60)\n",
    )
    assert probes.run([slow], seconds=1.5) is None
    if child.exists():  # its own children are ended too
        deadline = time.monotonic() + 5
        while alive(int(child.read_text())) and time.monotonic() < deadline:
            os.sched_yield() if hasattr(os, "sched_yield") else None
        assert not alive(int(child.read_text()))
    assert probes.run([script(tmp_path / "bad", "raise SystemExit(3)\n")]) is None
    assert probes.run([str(tmp_path / "missing")]) is None
    assert probes.run([script(tmp_path / "good", "print('CUDA0')\n")]) == "CUDA0\n"
    assert probes.read(tmp_path / "missing") is None


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.split(")")[-1].split()[0] != "Z"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX scripts")
def test_the_first_engine_on_the_path_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        tmp_path / "llama-server",
        "import sys\nassert '--list-devices' in sys.argv\nprint('ggml_cuda_init: found 1 CUDA devices')\n"
        "print('Available devices:\\n  CUDA0: NVIDIA GeForce RTX 3090 (24135 MiB, 23691 MiB free)')\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("ADVISOR_ENGINE", raising=False)
    name, devices = probes.engine_devices()
    assert name == "llama-server"
    assert [(d.name, d.description, d.memory) for d in devices] == [("CUDA0", "NVIDIA GeForce RTX 3090", 24135 * 2**20)]


def test_backends_by_the_names_of_their_devices() -> None:
    names = {
        "CUDA0": "cuda",
        "ROCm1": "rocm",
        "Vulkan0": "vulkan",
        "MTL0": "metal",
        "SYCL0": "sycl",
        "GPUOpenCL": "opencl",
    }
    assert {name: parse.backend_of(name) for name in names} == names
    assert parse.backend_of("CPU") is parse.backend_of("RPC[10.0.0.2:50052]") is None


# --- what --hardware means ----------------------------------------------------------------------------------------


def test_a_machine_by_numbers() -> None:
    setup = resolve(bandwidth=256, memory=128)
    assert setup.hardware.source == "numbers"
    assert numbers(setup.hardware.device.bandwidth) == (256, "assumed")
    assert setup.backend == "vulkan"
    assert any("Vulkan is assumed" in sentence for sentence in setup.hardware.assumptions)
    cpu = by_numbers(80, None, "cpu")
    assert cpu.device.is_cpu
    assert any("memory is not stated" in sentence for sentence in cpu.assumptions)


def test_names_numbers_and_backends_combine() -> None:
    setup = resolve("395", bandwidth=212, memory=96, backend="HIP", parallel=4, cache_type_k="Q8_0")
    assert numbers(setup.hardware.device.bandwidth) == (212, "assumed")
    assert numbers(setup.hardware.device.memory) == (96, "assumed")
    assert (setup.backend, setup.parallel, setup.cache_type_k) == ("rocm", 4, "q8_0")
    assert not any("128 GB is assumed" in sentence for sentence in setup.hardware.assumptions)
    assert resolve("RTX 3090").backend == "cuda"


def test_the_cpu_backend_runs_on_the_host() -> None:
    setup = resolve("RTX 4090 + DDR5-6000 dual channel 64GB", backend="cpu")
    assert [device.slug for device in setup.hardware.devices] == ["cpu-ddr5-6000-2ch"]
    assert setup.hardware.host is None
    assert any("Only the processor" in sentence for sentence in setup.hardware.assumptions)


def test_auto_is_this_machine() -> None:
    assert resolve().hardware == detect()
    assert resolve(" ").hardware.source == "detected"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"bandwidth": 0.0}, "--bandwidth"),
        ({"bandwidth": float("nan")}, "--bandwidth"),
        ({"name": "395", "memory": -1.0}, "--memory"),
        ({"name": "395", "backend": "cudda"}, "cudda"),
        ({"name": "395", "cache_type_k": "q9_9"}, "q9_9"),
        ({"name": "395", "cache_type_v": "q8_0", "flash_attention": False}, "flash attention"),
        ({"name": "395", "parallel": 0}, "slots"),
        ({"name": "395", "placement": Placement(draft_device="second")}, "second device"),
        ({"name": "395", "placement": Placement(tensor_split=(1, 2))}, "--tensor-split"),
        ({"name": "2x RTX 3090", "placement": Placement(tensor_split=(1, float("inf")))}, "--tensor-split"),
        ({"name": "395", "placement": Placement(gpu_layers=-2)}, "-ngl"),
        ({"name": "395", "placement": Placement(cpu_moe_layers=-1)}, "--n-cpu-moe"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError) as error:
        resolve(**options)
    assert word in error.value.message
    assert "\n" not in str(error.value)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownHardwareError):
        resolve("toaster 3000")
