"""What a machine is: devices with bandwidth and memory, and where a model's weights are put."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from advisor.base import Figure, Frozen

Backend = Literal["cuda", "rocm", "vulkan", "metal", "sycl", "opencl", "cpu"]
DeviceClass = Literal[
    "consumer-gpu", "workstation-gpu", "datacenter-gpu", "igpu", "unified-apu", "unified-soc", "apple-soc",
    "edge-soc", "arm-soc", "sbc-cpu", "desktop-cpu", "server-cpu", "custom",
]  # fmt: skip


class Device(Frozen):
    """One memory tier with the processor that reads it: a GPU, an SoC, or a CPU with its RAM.

    ``bandwidth`` theoretical peak [GB/s, 1e9], ``memory`` [GB, 1e9... as sold], ``fp32_vector`` shader rate
    without dual issue [TFLOPS], ``fp16`` and ``int8`` vendor rates [TFLOPS, TOPS], ``tdp`` [W].
    """

    slug: str
    name: str
    vendor: str
    device_class: DeviceClass
    architecture: str | None = None
    bandwidth: Figure | None = None
    memory: Figure | None = None
    fp32_vector: Figure | None = None
    fp16: Figure | None = None
    int8: Figure | None = None
    tdp: Figure | None = None
    aliases: tuple[str, ...] = ()
    memory_options: tuple[float, ...] = ()
    """Sizes sold, if there are several [GB]; ``memory`` is then the largest unless somebody chose."""
    cores: int | None = None
    """Physical CPU cores that may be used, where known (CPUs only)."""
    notes: str | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether llama.cpp would run this device with its CPU backend."""
        return self.device_class in ("desktop-cpu", "server-cpu", "sbc-cpu", "arm-soc")

    @property
    def is_unified(self) -> bool:
        """Whether GPU and CPU share this memory."""
        return self.device_class in ("igpu", "unified-apu", "unified-soc", "apple-soc", "edge-soc")


class Hardware(Frozen):
    """A machine as the physics sees it.

    ``devices`` hold the weights in order (several = several GPUs); ``host`` is the CPU and RAM behind discrete
    GPUs (None = unknown or the same memory); ``link`` host-to-device transfers [GB/s].
    """

    name: str
    devices: tuple[Device, ...]
    host: Device | None = None
    link: Figure | None = None
    backend: Backend
    """The backend llama.cpp would most likely use here; a command's ``--backend`` overrides it."""
    source: Literal["profile", "detected", "numbers"]
    assumptions: tuple[str, ...] = ()

    @cached_property
    def device(self) -> Device:
        """The first device."""
        return self.devices[0]


class RpcHost(Frozen):
    """A second machine that serves layers through llama.cpp's RPC backend."""

    hardware: Hardware
    bandwidth: Figure
    """Network throughput [GB/s]."""
    latency: Figure
    """One-way latency per transfer [ms]."""
    address: str | None = None
    """``host:port`` of its rpc-server, for a command line."""


class Placement(Frozen):
    """Which bytes live where; the defaults mean everything on the device(s), split by layers."""

    gpu_layers: int | None = None
    """``-ngl``: trunk layers on the device, the rest on the host. None = all."""
    cpu_moe: bool = False
    """``--cpu-moe``: all routed experts on the host."""
    cpu_moe_layers: int = 0
    """``--n-cpu-moe``: routed experts of the first N layers on the host."""
    split: Literal["layer", "row", "tensor", "none"] = "layer"
    tensor_split: tuple[float, ...] = ()
    """Shares per device; empty = by memory."""
    draft_device: Literal["same", "host", "second"] = "same"
    rpc: tuple[RpcHost, ...] = ()


class Setup(Frozen):
    """Everything about a run except the models: machine, backend, placement, cache, slots."""

    hardware: Hardware
    backend: Backend
    placement: Placement = Placement()
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    parallel: int = 1
    flash_attention: bool = True
    build: int | None = None
    """llama.cpp build number, for kernels that changed; None = a current one."""
