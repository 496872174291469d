"""Fetching facts from this machine: files, the system's own tools, llama.cpp's device list. All time-bounded.

Every source may be missing (no root, no GPU, no tool): then its facts stay empty and a remark says so.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.hardware import facts as parse
from advisor.hardware.facts import CpuFacts, Facts, GpuFacts, MemoryModule
from advisor.llamacpp.find import EngineDevice

TOOL_SECONDS = 8.0
"""Longest wait for one tool [s]; a sleeping discrete GPU may need several to answer."""
_READ_LIMIT = 4 * 2**20
_IDS = ("/usr/share/libdrm/amdgpu.ids", "/opt/amdgpu/share/libdrm/amdgpu.ids")
_PCI_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids", "/usr/share/pci.ids")

WINDOWS_SCRIPT = r"""
$ErrorActionPreference = 'SilentlyContinue'
$key = 'HKLM:\SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}\0*'
@{
  cpu = @(Get-CimInstance Win32_Processor | Select-Object Name, Manufacturer, NumberOfCores, NumberOfLogicalProcessors)
  modules = @(Get-CimInstance Win32_PhysicalMemory | Select-Object Capacity, ConfiguredClockSpeed, Speed,
    SMBIOSMemoryType, DeviceLocator, BankLabel, DataWidth)
  gpus = @(Get-ItemProperty $key | Where-Object { $_.DriverDesc } | ForEach-Object {
    @{ name = $_.DriverDesc; memory = [string]$_.'HardwareInformation.qwMemorySize' } })
  system = @(Get-CimInstance Win32_ComputerSystem | Select-Object Manufacturer, Model, HypervisorPresent)
} | ConvertTo-Json -Depth 4 -Compress
"""


def run(
    command: Sequence[str], seconds: float = TOOL_SECONDS, environment: Mapping[str, str] | None = None
) -> str | None:
    """Standard output and error of a command, None if it is missing, fails or takes longer than ``seconds``."""
    try:
        with subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**(os.environ if environment is None else environment), "LC_ALL": "C"},
            start_new_session=os.name == "posix",
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                _kill(process)
                return None
    except (OSError, ValueError):
        return None
    return output[:_READ_LIMIT].decode("utf-8", "replace") if process.returncode == 0 else None


def _kill(process: subprocess.Popen[bytes]) -> None:
    if os.name == "posix":
        import signal

        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
    else:
        process.kill()
    process.communicate()


def read(path: str | Path) -> str | None:
    """Start of a text file, None if it cannot be read."""
    data = read_bytes(path)
    return None if data is None else data.decode("utf-8", "replace")


def read_bytes(path: str | Path) -> bytes | None:
    """Start of a file, None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_READ_LIMIT)
    except (OSError, ValueError):
        return None


def collect(*, engine: bool = True) -> Facts:
    """Everything this machine tells without special rights. ``engine``: also ask llama.cpp for its devices."""
    system = platform.system()
    if system == "Linux":
        found = linux()
    elif system == "Darwin":
        found = macos()
    elif system == "Windows":
        found = windows()
    else:
        found = Facts(cpu=_portable_cpu(), memory=_portable_memory())
    if engine:
        name, devices = engine_devices()
        found = found.model_copy(update={"engine": name, "engine_devices": devices})
    return found


def _portable_cpu() -> CpuFacts:
    import psutil

    threads = psutil.cpu_count() or 1
    return CpuFacts(name=platform.processor(), cores=psutil.cpu_count(logical=False) or threads, threads=threads)


def _portable_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().total)


# --- llama.cpp ----------------------------------------------------------------------------------------------------


def engine_devices() -> tuple[str | None, tuple[EngineDevice, ...]]:
    """The engine found and its own list of devices: a llama-server of the user, else the embedded one.

    Both are asked in a child process, because a backend that fails to start takes its process with it.
    """
    from advisor.llamacpp.find import candidates, isolated_environment, parse_devices

    for path, _ in candidates():
        command = [path, "serve"] if Path(path).stem.lower() == "llama" else [path]
        text = run([*command, "--list-devices"], environment=isolated_environment())
        if text is not None:
            return Path(path).stem, parse_devices(text)
    import importlib.util

    if importlib.util.find_spec("xllamacpp") is not None:
        from advisor.llamacpp.embedded import embedded_devices

        try:
            return "the embedded engine", embedded_devices()
        except (OSError, subprocess.SubprocessError):
            return None, ()
    return None, ()


# --- NVIDIA, any system -------------------------------------------------------------------------------------------


def nvidia() -> tuple[GpuFacts, ...]:
    """NVIDIA GPUs by NVML, else by ``nvidia-smi``."""
    text = run([sys.executable, "-I", str(Path(__file__).with_name("nvml.py"))])
    gpus = parse.parse_nvml(text or "")
    if gpus:
        return gpus
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    text = run([tool, f"--query-gpu={parse.NVIDIA_QUERY}", "--format=csv,noheader,nounits"])
    return parse.parse_nvidia_smi(text or "")


# --- Linux --------------------------------------------------------------------------------------------------------


def linux(root: Path = Path("/")) -> Facts:
    """Facts of a Linux machine; ``root`` is where its ``/proc`` and ``/sys`` are."""
    remarks: list[str] = []
    cpu = parse.parse_cpuinfo(read(root / "proc/cpuinfo") or "")
    board = (read(root / "proc/device-tree/model") or read(root / "sys/class/dmi/id/product_name") or "").strip("\0\n ")
    memory_limit, cpu_limit = parse.parse_cgroup(
        lambda path: read(root / "sys/fs/cgroup" / path), read(root / "proc/self/cgroup") or ""
    )
    if root == Path("/"):
        allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cpu.threads
        if allowed < cpu.threads:
            cpu_limit = min(cpu_limit or allowed, float(allowed))
    modules = _linux_modules(root)
    gpus: list[GpuFacts] = []
    hints = ("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/wsl/lib/libnvidia-ml.so.1", "dev/nvhost-gpu")
    if any((root / hint).exists() for hint in hints):
        found = nvidia()
        if not found:
            remarks.append("An NVIDIA driver is loaded, but neither NVML nor nvidia-smi answered.")
        gpus += found
    gpus += _linux_cards(root)
    return Facts(
        system="Linux",
        board=board,
        cpu=cpu,
        memory=parse.parse_meminfo(read(root / "proc/meminfo") or ""),
        memory_limit=memory_limit,
        cpu_limit=cpu_limit,
        virtual=_linux_virtual(root, cpu),
        modules=modules,
        gpus=tuple(gpus),
        remarks=tuple(remarks),
    )


def _linux_virtual(root: Path, cpu: CpuFacts) -> str | None:
    vendor = (read(root / "sys/class/dmi/id/sys_vendor") or "").strip()
    if "microsoft" in (read(root / "proc/version") or "").lower() and not vendor:
        return "WSL"
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return "container"
    return (vendor or "virtual machine") if cpu.hypervisor else None


def _linux_modules(root: Path) -> tuple[MemoryModule, ...]:
    modules = parse.parse_udev_memory(read(root / "run/udev/data/+dmi:id") or "")
    if not modules:
        modules = parse.parse_smbios(read_bytes(root / "sys/firmware/dmi/tables/DMI") or b"")
    if not modules and root == Path("/") and hasattr(os, "geteuid") and os.geteuid() == 0:
        tool = shutil.which("dmidecode")
        modules = parse.parse_dmidecode((run([tool, "-t", "17"]) if tool else "") or "")
    return modules


def _linux_cards(root: Path) -> list[GpuFacts]:
    """AMD and Intel GPUs in sysfs; NVIDIA's are left to its own library."""
    gpus = []
    drm = root / "sys/class/drm"
    cards = sorted(path for path in drm.glob("card[0-9]*") if path.name[4:].isdigit()) if drm.is_dir() else []
    for card in cards:
        device = card / "device"
        vendor, number, revision = (_hex(read(device / key)) for key in ("vendor", "device", "revision"))
        bus = device.resolve().name
        rate = parse.parse_link(read(device / "max_link_speed") or "", read(device / "max_link_width") or "")
        if vendor == 0x1002 and number is not None:
            vram, gtt = _number(device / "mem_info_vram_total"), _number(device / "mem_info_gtt_total")
            name = _amd_name(root, device, number, revision or 0)
            gpus.append(
                GpuFacts(
                    name=name,
                    vendor="AMD",
                    memory=vram,
                    shared_memory=gtt,
                    link=rate,
                    link_source="sysfs",
                    bus=bus,
                    source="amdgpu",
                )
            )
        elif vendor == 0x8086 and number is not None:
            ids = next((text for path in _PCI_IDS if (text := read(root / path[1:]))), "")
            integrated = bus.endswith("00:02.0")
            gpus.append(
                GpuFacts(
                    name=parse.parse_pci_ids(ids, vendor, number) or f"Intel graphics {number:04x}",
                    vendor="Intel",
                    memory=None if integrated else _largest_region(read(device / "resource") or ""),
                    integrated=integrated,
                    link=rate,
                    link_source="sysfs",
                    bus=bus,
                    source="sysfs",
                )
            )
    return gpus


def _amd_name(root: Path, device: Path, number: int, revision: int) -> str:
    name = (read(device / "product_name") or "").strip()
    for path in _IDS:
        name = name or parse.parse_amdgpu_ids(read(root / path[1:]) or "", number, revision) or ""
    for path in _PCI_IDS:
        name = name or parse.parse_pci_ids(read(root / path[1:]) or "", 0x1002, number) or ""
    return name or f"AMD graphics {number:04x}"


def _hex(text: str | None) -> int | None:
    try:
        return int(text or "", 16)
    except ValueError:
        return None


def _number(path: Path) -> int | None:
    text = (read(path) or "").strip()
    return int(text) if text.isdigit() and int(text) else None


def _largest_region(text: str) -> int | None:
    """Size of the largest memory window of a PCI device: with resizable BAR, its whole memory [bytes]."""
    largest = 0
    for line in text.splitlines()[:6]:
        fields = [_hex(field) for field in line.split()]
        if len(fields) >= 2 and fields[0] is not None and fields[1]:
            largest = max(largest, fields[1] - fields[0] + 1)
    return largest if largest >= 2 * parse.GIB else None


# --- macOS --------------------------------------------------------------------------------------------------------

_SYSCTL = (
    "machdep.cpu.brand_string", "hw.memsize", "hw.physicalcpu", "hw.logicalcpu", "hw.model", "kern.hv_vmm_present",
    "iogpu.wired_limit_mb",
)  # fmt: skip


def macos() -> Facts:
    """Facts of a Mac."""
    values: dict[str, str] = {}
    for key in _SYSCTL:  # one by one: an unknown key makes the whole call fail
        values.update(parse.parse_sysctl(run(["/usr/sbin/sysctl", key], 2.0) or ""))
    gpus = parse.parse_displays(run(["/usr/sbin/system_profiler", "SPDisplaysDataType", "-json"]) or "")
    name = values.get("machdep.cpu.brand_string", "")
    remarks = [] if gpus else ["system_profiler did not name the GPU."]
    if not gpus and name.startswith("Apple"):
        gpus = (GpuFacts(name=name, vendor="Apple", integrated=True, source="sysctl"),)
    wired = parse.whole(values.get("iogpu.wired_limit_mb"))
    if wired:
        gpus = tuple(gpu.model_copy(update={"memory": wired * 2**20}) if gpu.integrated else gpu for gpu in gpus)
    return Facts(
        system="Darwin",
        board=values.get("hw.model", ""),
        cpu=CpuFacts(
            name=name,
            vendor="Apple" if name.startswith("Apple") else "Intel",
            cores=parse.whole(values.get("hw.physicalcpu")) or 1,
            threads=parse.whole(values.get("hw.logicalcpu")) or 1,
        ),
        memory=parse.whole(values.get("hw.memsize")),
        virtual="virtual machine" if values.get("kern.hv_vmm_present") == "1" else None,
        gpus=gpus,
        remarks=tuple(remarks),
    )


# --- Windows ------------------------------------------------------------------------------------------------------


def windows() -> Facts:
    """Facts of a Windows machine, through CIM and the registry."""
    shell = shutil.which("powershell") or shutil.which("pwsh")
    text = (
        run([shell, "-NoProfile", "-NonInteractive", "-Command", WINDOWS_SCRIPT], 2 * TOOL_SECONDS) if shell else None
    )
    found = parse.parse_windows(text or "")
    remarks = [] if found else ["PowerShell did not describe the machine; memory speed and GPUs are not known."]
    gpus = parse.windows_gpus(found.get("gpus", []))
    if any(gpu.vendor == "NVIDIA" for gpu in gpus) or shutil.which("nvidia-smi"):
        better = nvidia()
        gpus = better + tuple(gpu for gpu in gpus if gpu.vendor != "NVIDIA") if better else gpus
    system = (found.get("system") or [{}])[0]
    maker, model = str(system.get("Manufacturer") or ""), str(system.get("Model") or "")
    guest = any(word in f"{maker} {model}".lower() for word in ("virtual", "vmware", "qemu", "kvm", "xen", "amazon"))
    cpu = parse.windows_cpu(found.get("cpu", []), guest)
    return Facts(
        system="Windows",
        board=model,
        cpu=cpu if cpu.name else _portable_cpu(),
        memory=_portable_memory(),
        virtual=f"{maker} {model}".strip() if guest else None,
        modules=parse.windows_modules(found.get("modules", [])),
        gpus=gpus,
        remarks=tuple(remarks),
    )
