"""Running the predictor over published measurements and saying how far it is off."""

from advisor.validation.report import (
    Group,
    LinePrediction,
    SkipCount,
    ValidationReport,
    validate,
)

__all__ = ["Group", "LinePrediction", "SkipCount", "ValidationReport", "validate"]
