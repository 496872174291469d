"""Noticing that somebody else uses the machine while we measure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

BUSY = 0.1
"""Share of all processors used by others from which timings are disturbed."""


class HasProcessorTime(Protocol):
    """Anything that knows its own processor time."""

    def processor_seconds(self) -> float | None:
        """Processor time used so far [s]; None = cannot be read."""


class ContentionMeter:
    """Adds up, over measured stretches, the processor time that was neither ours nor idle."""

    def __init__(self) -> None:
        self._others = 0.0
        self._total = 0.0

    @contextmanager
    def during(self, server: HasProcessorTime) -> Iterator[None]:
        """Measure the enclosed stretch; ``server`` is the process that works for us meanwhile."""
        before = _machine()
        own = server.processor_seconds()
        mine = sum(os.times()[:2])
        yield
        after = _machine()
        now = server.processor_seconds()
        if own is None or now is None:
            return
        used = now - own + sum(os.times()[:2]) - mine
        self._others += max(0.0, after[0] - before[0] - used)
        self._total += after[1] - before[1]

    def absorb(self, other: ContentionMeter) -> None:
        """Add what another meter saw."""
        self._others += other._others
        self._total += other._total

    @property
    def busy(self) -> bool:
        """Whether others used enough of the machine to disturb timings."""
        return self.share is not None and self.share > BUSY

    @property
    def share(self) -> float | None:
        """Share of all processors that others used, 0..1; None before anything could be measured."""
        return min(1.0, self._others / self._total) if self._total > 0.5 else None


def _machine() -> tuple[float, float]:
    """Busy and total processor seconds of the whole machine since it started."""
    import psutil

    times = psutil.cpu_times()
    total = sum(
        getattr(times, name, 0.0) for name in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    )
    idle = times.idle + getattr(times, "iowait", 0.0)
    return total - idle, total
