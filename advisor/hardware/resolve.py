"""What ``--hardware`` and its companions mean: from words and numbers to a :class:`Setup`."""

from __future__ import annotations

import math
from typing import get_args

from advisor.base import Figure
from advisor.errors import InputError
from advisor.hardware.machine import Backend, Device, Hardware, Placement, Setup
from advisor.text import clean

BACKENDS: tuple[Backend, ...] = get_args(Backend)
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types that llama.cpp accepts for ``--cache-type-k`` and ``--cache-type-v``."""

_ALIASES = {"hip": "rocm", "mtl": "metal", "vk": "vulkan", "nvidia": "cuda", "blas": "cpu"}


def resolve(
    name: str = "auto",
    *,
    bandwidth: float | None = None,
    memory: float | None = None,
    backend: str | None = None,
    placement: Placement | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    parallel: int = 1,
    flash_attention: bool = True,
) -> Setup:
    """The setup a user asked for.

    Args:
        name: ``auto`` (this machine) or the name of a profile. With ``auto`` and ``bandwidth`` the machine is
            described by the numbers alone.
        bandwidth: memory bandwidth [GB/s]; replaces that of the (first) device.
        memory: memory that models may use [GB]; replaces that of the (first) device.
        backend: llama.cpp backend; None = the machine's usual one.
        placement: which bytes live where; None = everything on the device(s).
        cache_type_k: type of the K cache.
        cache_type_v: type of the V cache.
        parallel: server slots (``-np``).
        flash_attention: ``-fa``; a quantised V cache needs it.

    Raises:
        UnknownHardwareError: no profile of that name.
        InputError: a number or word that cannot be used.
    """
    for value, option, limit in ((bandwidth, "--bandwidth", 1e5), (memory, "--memory", 1e5)):
        if value is not None and not (math.isfinite(value) and 0 < value <= limit):
            raise InputError(f"{option} must be a number above 0 and at most {limit:g}, not {value:g}.")
    chosen = _backend(backend)
    key, value_type = (_cache_type(t) for t in (cache_type_k, cache_type_v))
    if not flash_attention and value_type not in ("f32", "f16", "bf16"):
        raise InputError(
            f"A {value_type} V cache needs flash attention.", "Use --flash-attn on, or an f16 V cache (-ctv f16)."
        )
    if parallel < 1:
        raise InputError(f"The number of parallel slots must be at least 1, not {parallel}.")
    hardware = _hardware(name.strip() or "auto", bandwidth, memory, chosen)
    place = placement or Placement()
    _check(place, hardware)
    return Setup(
        hardware=hardware,
        backend=chosen or hardware.backend,
        placement=place,
        cache_type_k=key,
        cache_type_v=value_type,
        parallel=parallel,
        flash_attention=flash_attention,
    )


def _backend(text: str | None) -> Backend | None:
    if text is None or text.strip().lower() in ("", "auto"):
        return None
    word = text.strip().lower()
    word = _ALIASES.get(word, word)
    for known in BACKENDS:
        if word == known:
            return known
    raise InputError(f'There is no backend "{clean(text)}".', f"Known: {', '.join(BACKENDS)}.")


def _cache_type(text: str) -> str:
    word = text.strip().lower()
    if word not in CACHE_TYPES:
        raise InputError(f'There is no cache type "{clean(text)}".', f"Known: {', '.join(CACHE_TYPES)}.")
    return word


def _hardware(name: str, bandwidth: float | None, memory: float | None, backend: Backend | None) -> Hardware:
    if name.lower() in ("auto", "this", "local"):
        if bandwidth is not None:
            return by_numbers(bandwidth, memory, backend)
        from advisor.hardware.detect import detect

        hardware = detect()
    else:
        from advisor.hardware.profiles import find

        hardware = find(name)
    if backend == "cpu" and not hardware.device.is_cpu:
        hardware = _on_the_cpu(hardware)
    return _override(hardware, bandwidth, memory)


def by_numbers(bandwidth: float, memory: float | None = None, backend: Backend | None = None) -> Hardware:
    """A machine nobody describes: one device of ``bandwidth`` [GB/s] and ``memory`` [GB]."""
    said = []
    if backend is None:
        said.append("The backend is not stated: Vulkan is assumed (say --backend cuda, metal, cpu … for another).")
    if memory is None:
        said.append("The memory is not stated, so nothing can be said about fitting (add --memory GB).")
    device = Device(
        slug="custom",
        name=f"{bandwidth:g} GB/s" + (f", {memory:g} GB" if memory else ""),
        vendor="",
        device_class="desktop-cpu" if backend == "cpu" else "custom",
        bandwidth=Figure(value=bandwidth, unit="GB/s", kind="assumed", source="given as --bandwidth"),
        memory=None if memory is None else Figure(value=memory, unit="GB", kind="assumed", source="given as --memory"),
    )
    return Hardware(
        name=device.name, devices=(device,), backend=backend or "vulkan", source="numbers", assumptions=tuple(said)
    )


def _on_the_cpu(hardware: Hardware) -> Hardware:
    """The same machine with llama.cpp's CPU backend: the host behind discrete GPUs, or the shared memory."""
    device = hardware.host or hardware.device
    return hardware.model_copy(
        update={
            "name": f"{hardware.name} (CPU)",
            "devices": (device,),
            "host": None,
            "link": None,
            "backend": "cpu",
            "assumptions": (*hardware.assumptions, f"Only the processor is used, with the memory of {device.name}."),
        }
    )


def _override(hardware: Hardware, bandwidth: float | None, memory: float | None) -> Hardware:
    if bandwidth is None and memory is None:
        return hardware
    first, changed = hardware.device, {}
    kept = list(hardware.assumptions)
    if bandwidth is not None:
        changed["bandwidth"] = Figure(value=bandwidth, unit="GB/s", kind="assumed", source="given as --bandwidth")
    if memory is not None:
        changed["memory"] = Figure(value=memory, unit="GB", kind="assumed", source="given as --memory")
        kept = [sentence for sentence in kept if " is sold with " not in sentence]
    return hardware.model_copy(
        update={
            "devices": (first.model_copy(update=changed), *hardware.devices[1:]),
            "assumptions": tuple(kept),
        }
    )


def _check(place: Placement, hardware: Hardware) -> None:
    count = len(hardware.devices)
    if place.gpu_layers is not None and place.gpu_layers < 0:
        raise InputError(f"The number of layers on the GPU (-ngl) must be at least 0, not {place.gpu_layers}.")
    if place.cpu_moe_layers < 0:
        raise InputError(f"--n-cpu-moe must be at least 0, not {place.cpu_moe_layers}.")
    if place.tensor_split and (len(place.tensor_split) > count or sum(place.tensor_split) <= 0):
        raise InputError(
            f"--tensor-split has {len(place.tensor_split)} shares, but {hardware.name} has {count} "
            f"device{'s' if count > 1 else ''}."
        )
    if any(not math.isfinite(share) or share < 0 for share in place.tensor_split):
        raise InputError("The shares of --tensor-split must be numbers of at least 0.")
    if place.draft_device == "second" and count < 2:
        raise InputError(
            f"The draft cannot be put on a second device: {hardware.name} has one.",
            'Name both, for example "RTX 3090 + RTX 3060".',
        )
