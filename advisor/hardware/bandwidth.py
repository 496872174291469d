"""Memory bandwidth of a processor: what its generation suggests, and what this one really streams."""

from __future__ import annotations

import re
from typing import NamedTuple

from advisor.base import Figure, Frozen
from advisor.hardware.facts import CpuFacts

STREAMED = 0.75
"""Part of a memory's theoretical peak that streaming reads reach (0.7 to 0.85 on desktops). Profiles state the peak and
the cost models multiply by what llama.cpp reaches of it, so a measured rate has to be turned into a peak first."""
CORE_PEAK = 16.0
"""Peak that one core of a shared server can use up [GB/s]: it streams 10 to 16 GB/s (Skylake-SP to Milan), which is
:data:`STREAMED` of this. Bounds a slice of a big socket."""


class Generation(NamedTuple):
    """Memory of a processor generation: channels per socket and speed [MT/s]."""

    label: str
    channels: int
    speed: int
    kind: str
    server: bool


# (vendor, family, models) of processors whose name does not tell their memory. Names and models: vendor manuals.
_BY_MODEL: tuple[tuple[str, int, frozenset[int], Generation], ...] = (
    ("AMD", 23, frozenset({1}), Generation("EPYC Naples", 8, 2666, "DDR4", True)),
    ("AMD", 23, frozenset({49}), Generation("EPYC Rome", 8, 3200, "DDR4", True)),
    ("AMD", 25, frozenset({1}), Generation("EPYC Milan", 8, 3200, "DDR4", True)),
    ("AMD", 25, frozenset({17, 160}), Generation("EPYC Genoa", 12, 4800, "DDR5", True)),
    ("AMD", 26, frozenset({2, 17}), Generation("EPYC Turin", 12, 6000, "DDR5", True)),
    ("Intel", 6, frozenset({63}), Generation("Xeon E5 v3", 4, 2133, "DDR4", True)),
    ("Intel", 6, frozenset({79}), Generation("Xeon E5 v4", 4, 2400, "DDR4", True)),
    ("Intel", 6, frozenset({85}), Generation("Xeon Skylake or Cascade Lake", 6, 2666, "DDR4", True)),
    ("Intel", 6, frozenset({106, 108}), Generation("Xeon Ice Lake", 8, 3200, "DDR4", True)),
    ("Intel", 6, frozenset({143}), Generation("Xeon Sapphire Rapids", 8, 4800, "DDR5", True)),
    ("Intel", 6, frozenset({207}), Generation("Xeon Emerald Rapids", 8, 5600, "DDR5", True)),
    ("Intel", 6, frozenset({173, 174}), Generation("Xeon Granite Rapids", 8, 6400, "DDR5", True)),
    ("ARM", 0, frozenset({0xD0C}), Generation("Neoverse N1", 8, 3200, "DDR4", True)),
    ("ARM", 0, frozenset({0xD40, 0xD49}), Generation("Neoverse V1 or N2", 8, 4800, "DDR5", True)),
    ("ARM", 0, frozenset({0xD4F}), Generation("Neoverse V2", 12, 5600, "DDR5", True)),
)
_BY_NAME: tuple[tuple[str, Generation], ...] = (
    (r"threadripper pro [79]\d{3}", Generation("Threadripper PRO 7000", 8, 5200, "DDR5", True)),
    (r"threadripper pro", Generation("Threadripper PRO", 8, 3200, "DDR4", True)),
    (r"threadripper [79]\d{3}", Generation("Threadripper 7000", 4, 5200, "DDR5", True)),
    (r"threadripper", Generation("Threadripper", 4, 3200, "DDR4", True)),
    (r"epyc 4\d{3}", Generation("EPYC 4004", 2, 5200, "DDR5", True)),
    (r"epyc", Generation("EPYC", 8, 3200, "DDR4", True)),
    (r"xeon.*\be-?\d{4}", Generation("Xeon E", 2, 2666, "DDR4", True)),
    (r"xeon", Generation("Xeon", 4, 2400, "DDR4", True)),
    (r"ryzen ai", Generation("Ryzen AI", 2, 5600, "DDR5", False)),
    (r"ryzen \d (pro )?[789]\d{3}", Generation("Ryzen 7000 to 9000", 2, 5200, "DDR5", False)),
    (r"ryzen \d (pro )?6\d{3}", Generation("Ryzen 6000", 2, 4800, "DDR5", False)),
    (r"ryzen \d (pro )?[12]\d{3}", Generation("Ryzen 1000 and 2000", 2, 2666, "DDR4", False)),
    (r"ryzen", Generation("Ryzen 3000 to 5000", 2, 3200, "DDR4", False)),
    (r"core\(?t?m?\)? ultra", Generation("Core Ultra", 2, 5600, "DDR5", False)),
    (r"i[3579]-1[34]\d{3}", Generation("Core of the 13th and 14th generation", 2, 5600, "DDR5", False)),
    (r"i[3579]-12\d{3}", Generation("Core of the 12th generation", 2, 4800, "DDR5", False)),
    (r"i[3579]-1[01]\d{2,3}", Generation("Core of the 10th and 11th generation", 2, 3200, "DDR4", False)),
    (r"i[3579]-[6789]\d{3}", Generation("Core of the 6th to 9th generation", 2, 2400, "DDR4", False)),
    (r"i[3579]-[2345]\d{3}", Generation("Core of the 2nd to 5th generation", 2, 1600, "DDR3", False)),
    (r"\bn(95|97|100|150|200|305)\b", Generation("Intel N series", 1, 4800, "DDR5", False)),
)
_UNKNOWN = Generation("a desktop", 2, 3200, "DDR4", False)


def generation(cpu: CpuFacts) -> Generation | None:
    """Memory that this processor's generation has; None if neither name nor model number is known."""
    for vendor, family, models, found in _BY_MODEL:
        if cpu.vendor == vendor and cpu.model in models and (cpu.family or 0) == family and _is_server(cpu):
            return found
    name = cpu.name.lower()
    return next((found for pattern, found in _BY_NAME if re.search(pattern, name)), None)


def _is_server(cpu: CpuFacts) -> bool:
    # Desktop Zen parts share families with EPYC but not these models; Skylake-X shares a model with Xeon.
    return cpu.vendor == "ARM" or not re.search(r"ryzen|core\(tm\)|threadripper", cpu.name.lower())


def assumed_bandwidth(cpu: CpuFacts, *, cores: float, shared: bool) -> tuple[Figure, str]:
    """Peak bandwidth when the memory's speed is not known [GB/s], and the sentence that says so.

    Args:
        cpu: the processor.
        cores: cores that may be used.
        shared: whether this is a slice of a bigger machine (virtual machine, container).
    """
    known = generation(cpu)
    memory = known or _UNKNOWN
    peak = memory.channels * memory.speed * 8 / 1000 * (1 if shared else max(1, cpu.sockets))
    what = f"{memory.channels}-channel {memory.kind}-{memory.speed}"
    whose = f"usual for {memory.label}" if known else "the processor is not known"
    reach = CORE_PEAK * cores
    if (shared or memory.server) and reach < peak:
        figure = Figure(
            value=round(reach, 1),
            unit="GB/s",
            kind="assumed",
            source=f"{cores:g} cores x {CORE_PEAK:g} GB/s of {what} ({whose})",
        )
        return figure, (
            f"The memory's speed could not be read: {reach:g} GB/s are assumed, what {cores:g} cores draw from {what} "
            f"({whose}); `advisor hardware detect --measure` measures it."
        )
    figure = Figure(value=round(peak, 1), unit="GB/s", kind="assumed", source=f"{what} ({whose})")
    return figure, (
        f"The memory's speed could not be read: {what} is assumed ({whose}), {peak:g} GB/s; "
        "`advisor hardware detect --measure` measures it."
    )


class Streaming(Frozen):
    """A measured streaming rate [GB/s]: median and range of ``runs`` repetitions with ``threads`` threads."""

    median: float
    low: float
    high: float
    threads: int
    runs: int


def measure(threads: int, megabytes: int = 256, runs: int = 7) -> Streaming:
    """Rate at which ``threads`` threads together read main memory [GB/s].

    Each thread takes the maximum of its own block (numpy releases the GIL and reads every byte once). The blocks
    together are ``megabytes`` and thus larger than the caches; the first pass, which maps the pages, is not counted.
    """
    from statistics import median
    from threading import Barrier, Thread
    from time import perf_counter

    import numpy

    threads = max(1, threads)
    length = megabytes * 2**20 // 8 // threads
    blocks = [numpy.ones(length) for _ in range(threads)]
    rates: list[float] = []
    barrier = Barrier(threads + 1)

    def work(block: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]) -> None:
        for _ in range(runs + 1):
            barrier.wait()
            block.max()
            barrier.wait()

    workers = [Thread(target=work, args=(block,), daemon=True) for block in blocks]
    for worker in workers:
        worker.start()
    for _ in range(runs + 1):
        barrier.wait()
        start = perf_counter()
        barrier.wait()
        rates.append(8 * length * threads / (perf_counter() - start) / 1e9)
    for worker in workers:
        worker.join()
    counted = sorted(rates[1:])
    return Streaming(
        median=round(median(counted), 1),
        low=round(counted[0], 1),
        high=round(counted[-1], 1),
        threads=threads,
        runs=runs,
    )
