"""Shared base of all data models, and numbers that know where they come from."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Provenance = Literal["measured", "published", "fitted", "assumed"]
"""measured = on this machine; published = somebody's document; fitted = from published tables; assumed = neither."""


class Frozen(BaseModel):
    """Immutable, strict about unknown fields: every record of this package."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Figure(Frozen):
    """One number with its unit and origin.

    ``source`` names the document, table or measurement; ``kind`` says how far to trust it.
    """

    value: float
    unit: str
    kind: Provenance
    source: str


class Range(Frozen):
    """A median with the interval that holds ``level`` of the probability (0.8 = 10th to 90th percentile)."""

    median: float
    low: float
    high: float
    level: float = 0.8
