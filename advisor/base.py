"""Shared base of all data models, and numbers that know where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from typing_extensions import Self

Provenance = Literal["measured", "published", "fitted", "assumed"]
"""measured = on this machine; published = somebody's document; fitted = from published tables; assumed = neither."""


class Frozen(BaseModel):
    """Immutable, strict about unknown fields: every record of this package."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; what was computed from the old ones (cached properties) is forgotten."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


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
