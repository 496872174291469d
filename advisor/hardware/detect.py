"""This machine as a :class:`Hardware`: facts in, devices out, every guess named."""

from __future__ import annotations

import re
from functools import lru_cache

from advisor.base import Figure
from advisor.hardware.bandwidth import STREAMED, Streaming, assumed_bandwidth
from advisor.hardware.facts import GIB, Facts, GpuFacts, backend_of, memory_bandwidth
from advisor.hardware.machine import Backend, Device, Hardware
from advisor.hardware.profiles import DEFAULT_LINK, candidates, default_backend, devices, recognise
from advisor.text import clean

_SOFTWARE = re.compile(r"llvmpipe|lavapipe|swiftshader|softpipe|microsoft basic", re.IGNORECASE)
_UNIFIED = ("igpu", "unified-apu", "unified-soc", "apple-soc", "edge-soc")


def detect(*, measure: bool = False, engine: bool = True) -> Hardware:
    """This machine.

    Args:
        measure: stream through main memory for about a second instead of assuming its bandwidth.
        engine: ask an installed llama.cpp for its device list too.

    Having no GPU, no root and no tools is normal: what could not be found out is assumed and said to be.
    """
    facts = look(engine=engine)
    streaming = None
    if measure:
        from advisor.hardware.bandwidth import measure as measure_bandwidth

        streaming = measure_bandwidth(max(1, round(usable_cores(facts))))
    return assemble(facts, streaming)


@lru_cache(maxsize=2)
def look(*, engine: bool = True) -> Facts:
    """Facts of this machine; looked up once per process."""
    from advisor.hardware.probes import collect

    return collect(engine=engine)


def usable_cores(facts: Facts) -> float:
    """Physical cores that this process may use: fewer than the machine's in a container."""
    return min(float(facts.cpu.cores), facts.cpu_limit or float(facts.cpu.cores))


def assemble(facts: Facts, streaming: Streaming | None = None) -> Hardware:
    """The machine that these facts describe. Pure: the same facts give the same machine."""
    said = [*facts.remarks]
    cpu = _cpu(facts, streaming, said)
    gpus = _gpus(facts, cpu, said)
    discrete = [gpu for gpu in gpus if not gpu.is_unified]
    used = discrete or gpus[:1]
    if not used:
        if facts.gpus:
            unknown = ", ".join(clean(gpu.name) for gpu in facts.gpus)
            said.append(f"No profile knows {unknown}: the processor is used (name a profile with --hardware).")
        return Hardware(
            name=cpu.name, devices=(cpu,), backend="cpu", source="detected", assumptions=tuple(dict.fromkeys(said))
        )
    if discrete and len(gpus) > len(discrete):
        said.append("The integrated graphics are left out: llama.cpp prefers discrete GPUs.")
    backend = _backend(facts, used, said)
    link = _link(facts, said) if discrete else None
    names: dict[str, int] = {}
    for device in used:
        names[device.name] = names.get(device.name, 0) + 1
    return Hardware(
        name=" + ".join(f"{count}x {name}" if count > 1 else name for name, count in names.items()),
        devices=tuple(used),
        host=cpu if discrete else None,
        link=link,
        backend=backend,
        source="detected",
        assumptions=tuple(dict.fromkeys(said)),
    )


SLICE = 16
"""Up to so many cores, a virtual machine on a server has its cores and its memory on one node (assumed)."""


def _board(facts: Facts) -> Device | None:
    """The profile of a board that its firmware names ("Raspberry Pi 5 Model B Rev 1.0")."""
    name = re.sub(r"(?i)\s+(model|rev|developer|engineering|reference)\b.*", "", facts.board)
    return recognise(name) if name else None


def _memory(facts: Facts) -> Figure | None:
    total = facts.memory
    source = "total memory of the system"
    if facts.memory_limit and total and facts.memory_limit < total:
        total, source = facts.memory_limit, "limit of the container or control group"
    return Figure(value=round(total / GIB, 1), unit="GB", kind="measured", source=source) if total else None


def _cpu(facts: Facts, streaming: Streaming | None, said: list[str]) -> Device:
    cores = usable_cores(facts)
    known = _board(facts) or (recognise(facts.cpu.name.split(" - ")[0]) if facts.cpu.name else None)
    update: dict[str, object] = {"memory": _memory(facts), "cores": max(1, round(cores))}
    bandwidth = _cpu_bandwidth(facts, streaming, cores, known, said)
    if cores < facts.cpu.cores:
        said.append(f"Only {cores:g} of {facts.cpu.cores} cores may be used here.")
    if known and known.is_cpu:
        return known.model_copy(update={**update, "bandwidth": bandwidth, "memory_options": ()})
    name = clean(re.sub(r"\s+", " ", facts.cpu.name.replace("(R)", "").replace("(TM)", "")).strip(), 80)
    big = bool(re.search(r"epyc|xeon|threadripper|neoverse|graviton", name.lower()))
    # What makes published server rows slow is memory of other nodes; a slice of a server has one node.
    server = facts.cpu.sockets > 1 or (big and cores > SLICE)
    return Device.model_validate(
        {
            "slug": "this-cpu",
            "name": name or "CPU of this machine",
            "vendor": facts.cpu.vendor,
            "device_class": "server-cpu" if server else "desktop-cpu",
            "bandwidth": bandwidth,
            **update,
        }
    )


def _cpu_bandwidth(
    facts: Facts, streaming: Streaming | None, cores: float, known: Device | None, said: list[str]
) -> Figure:
    if streaming is not None:
        if streaming.high > 1.3 * streaming.low:
            said.append(
                f"The measured bandwidth varied from {streaming.low:g} to {streaming.high:g} GB/s: something else is "
                "using the memory; measure again when the machine is idle."
            )
        return Figure(
            value=round(streaming.median / STREAMED, 1),
            unit="GB/s",
            kind="measured",
            source=(
                f"{streaming.median:g} GB/s read by {streaming.threads} threads, median of {streaming.runs} runs "
                f"({streaming.low:g} to {streaming.high:g}), taken as {STREAMED:.0%} of the peak"
            ),
        )
    firmware = memory_bandwidth(facts.modules)
    if firmware:
        value, how = firmware
        return Figure(value=value, unit="GB/s", kind="published", source=f"{how}, as the firmware reports")
    if known and known.bandwidth and (known.is_cpu or known.is_unified):
        return known.bandwidth
    shared = facts.virtual is not None and (facts.cpu.hypervisor or cores < facts.cpu.cores)
    figure, sentence = assumed_bandwidth(facts.cpu, cores=cores, shared=shared)
    said.append(sentence)
    return figure


def _gpus(facts: Facts, cpu: Device, said: list[str]) -> list[Device]:
    found = [gpu for gpu in facts.gpus if not _SOFTWARE.search(gpu.name)]
    listed = [device for device in facts.engine_devices if not _SOFTWARE.search(device.description)]
    described: list[Device] = []
    for gpu in found:
        device = _gpu(gpu, facts, cpu, said)
        if device:
            described.append(device)
    if not described and listed:
        # The system gave no name that a profile knows, llama.cpp did.
        for entry in listed:
            gpu = GpuFacts(name=entry.description, memory=entry.memory, source=f"{facts.engine} --list-devices")
            device = _gpu(gpu, facts, cpu, said)
            if device:
                described.append(device)
    board = _board(facts)
    if not described and board is not None and board.is_unified:
        # A Jetson whose driver answers nothing is still a Jetson.
        described.append(_unified(board, GpuFacts(name=board.name, source="board"), facts, cpu, said))
    return described


def _gpu(gpu: GpuFacts, facts: Facts, cpu: Device, said: list[str]) -> Device | None:
    label = gpu.name
    if gpu.cores and gpu.vendor == "Apple":
        label = f"{gpu.name} ({gpu.cores}-core GPU)"
    size = gpu.memory / GIB if gpu.memory else None
    possible = candidates(label, size) or candidates(gpu.name, size)
    known = possible[0] if possible else None
    if known is not None and len(possible) > 1:
        others = ", ".join(device.name for device in possible[1:4])
        said.append(f"{clean(gpu.name, 80)} may be {known.name}, {others}: {known.name} is assumed.")
    if known is None and (gpu.integrated is not False) and gpu.vendor in ("AMD", "Intel", ""):
        known = _by_processor(facts)
    if known is None and gpu.memory is None:
        known = _board(facts)
    if known is not None and known.is_unified:
        return _unified(known, gpu, facts, cpu, said)
    name = clean(gpu.name, 80)
    memory = None
    if gpu.memory:
        memory = Figure(value=round(gpu.memory / GIB, 1), unit="GB", kind="measured", source=gpu.source)
    if known is not None:
        known = known.model_copy(update={"memory": memory or known.memory, "memory_options": ()})
        if gpu.bandwidth and known.bandwidth and abs(gpu.bandwidth / known.bandwidth.value - 1) > 0.05:
            said.append(
                f"{name}: the driver reports {gpu.bandwidth:g} GB/s, the profile says {known.bandwidth.value:g}; "
                "the driver is believed."
            )
            known = known.model_copy(update={"bandwidth": _driver(gpu)})
        return known
    if gpu.integrated or (gpu.memory or 0) < 2 * GIB:
        return None
    if gpu.bandwidth is None:
        said.append(f"No profile knows {name} and its driver does not tell the bandwidth: give --bandwidth GB/s.")
    else:
        said.append(f"No profile knows {name}; its bandwidth is what the driver reports.")
    return Device(
        slug="this-gpu",
        name=name,
        vendor=gpu.vendor,
        device_class="consumer-gpu",
        bandwidth=_driver(gpu),
        memory=memory,
    )


def _driver(gpu: GpuFacts) -> Figure | None:
    if gpu.bandwidth is None:
        return None
    return Figure(value=gpu.bandwidth, unit="GB/s", kind="published", source=gpu.bandwidth_source)


def _by_processor(facts: Facts) -> Device | None:
    """The APU that the processor's name means ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S"), if a profile knows it."""
    name = re.sub(r"(?i)\b(w/|with)\b.*", "", facts.cpu.name.replace("w/", " w/ ")).strip()
    known = recognise(name) if name else None
    return known if known is not None and known.device_class in _UNIFIED else None


def _unified(known: Device, gpu: GpuFacts, facts: Facts, cpu: Device, said: list[str]) -> Device:
    memory = known.memory
    limit = _memory(facts)
    usable = max((device.memory or 0 for device in facts.engine_devices), default=0)
    if usable:
        memory = Figure(
            value=round(usable / GIB, 1), unit="GB", kind="measured", source=f"{facts.engine}'s device list"
        )
    elif gpu.vendor == "AMD" and gpu.memory and gpu.shared_memory:
        both = gpu.memory + gpu.shared_memory
        memory = Figure(value=round(both / GIB, 1), unit="GB", kind="measured", source="amdgpu: VRAM + GTT")
        said.append(
            f"The driver lets the GPU use {both / GIB:.0f} GB (VRAM {gpu.memory / GIB:.0f} + GTT "
            f"{gpu.shared_memory / GIB:.0f}); the kernel option ttm.pages_limit raises it."
        )
    elif limit is not None:
        memory = limit
        if gpu.vendor == "Apple" and gpu.memory:
            memory = Figure(value=round(gpu.memory / GIB, 1), unit="GB", kind="measured", source="iogpu.wired_limit_mb")
    bandwidth = known.bandwidth
    firmware = memory_bandwidth(facts.modules)
    if firmware and known.device_class in ("igpu", "unified-apu"):
        # A Ryzen or Core laptop has the memory its maker soldered or its owner plugged in.
        bandwidth = Figure(
            value=firmware[0], unit="GB/s", kind="published", source=f"{firmware[1]}, as the firmware reports"
        )
    elif known.device_class == "igpu" and known.bandwidth:
        said.append(
            f"The memory's speed could not be read: {known.bandwidth.value:g} GB/s is assumed, as {known.name} "
            "is usually built."
        )
    return known.model_copy(update={"memory": memory, "bandwidth": bandwidth, "memory_options": (), "cores": cpu.cores})


def _backend(facts: Facts, used: list[Device], said: list[str]) -> Backend:
    for entry in facts.engine_devices:
        listed = backend_of(entry.name)
        if listed and not _SOFTWARE.search(entry.description):
            return listed
    backends = {default_backend(device) for device in used}
    backend: Backend = backends.pop() if len(backends) == 1 else "vulkan"
    if facts.engine:
        said.append(
            f"{facts.engine} lists no GPU, so it would run on the processor: another build is needed to use {backend} "
            "(or ask with --backend cpu)."
        )
    return backend


def _link(facts: Facts, said: list[str]) -> Figure:
    for gpu in facts.gpus:
        if gpu.link and not gpu.integrated:
            return Figure(
                value=round(0.8 * gpu.link, 1), unit="GB/s", kind="published", source=f"80 % of {gpu.link_source}"
            )
    said.append("The link between host and GPU could not be read: PCIe 4.0 x16 is assumed (25 GB/s).")
    return DEFAULT_LINK


def known_slugs(hardware: Hardware) -> tuple[str, ...]:
    """Slugs of the devices that a profile describes."""
    return tuple(device.slug for device in hardware.devices if device.slug in devices())
