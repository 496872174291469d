"""Intervals on ratios of times. Ratios are compared in log space, where 2x and 0.5x are equally far from 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from advisor.base import Range

LEVEL = 0.95
_T = (
    # two-sided 95 % points of Student's t by degrees of freedom (1..30)
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student_t(freedom: int) -> float:
    """Two-sided 95 % point of Student's t."""
    return _T[min(max(freedom, 1), len(_T)) - 1] if freedom <= len(_T) else 1.96 + 2.5 / freedom


def ratio_range(logs: Sequence[Sequence[float]]) -> Range:
    """Mean ratio with its 95 % interval from log ratios, grouped by prompt.

    Three or more prompts: a t interval over the prompts' means, so that the spread of content counts. Fewer: over
    all single ratios. One single ratio gives an interval without bounds in effect (a factor of 10 either way).
    """
    groups = [list(g) for g in logs if len(g)]
    means = [fmean(g) for g in groups]
    values = means if len(means) >= 3 else [x for g in groups for x in g]
    centre = fmean(means)
    freedom = len(values) - 1
    half = student_t(freedom) * stdev(values) / math.sqrt(len(values)) if freedom else math.log(10)
    return Range(median=math.exp(centre), low=math.exp(centre - half), high=math.exp(centre + half), level=LEVEL)


def noise(logs: Sequence[Sequence[float]]) -> float | None:
    """Standard error of the mean log ratio from repetitions alone (content left out); None without repetitions."""
    squares, freedom, count = 0.0, 0, 0
    for group in logs:
        count += len(group)
        if len(group) > 1:
            centre = fmean(group)
            squares += sum((x - centre) ** 2 for x in group)
            freedom += len(group) - 1
    return math.sqrt(squares / freedom / count) if freedom else None


def half_width(interval: Range) -> float:
    """Half the width of an interval in log space: 0.05 is about 5 %."""
    return math.log(interval.high / interval.low) / 2


def spread(values: Sequence[float]) -> float:
    """Robust relative spread: median absolute deviation over the median, scaled to a standard deviation."""
    centre = median(values)
    return 1.4826 * median(abs(v - centre) for v in values) / centre if centre else 0.0
