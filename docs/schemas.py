"""Publishes the JSON schemas of everything ``--json`` prints, under ``docs/schemas/``.

``python docs/schemas.py`` writes them; ``--check`` exits with 1 if one is out of date, as the tests do.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from pydantic import BaseModel

FOLDER = Path(__file__).resolve().parent / "schemas"
CONTRACTS: dict[str, str] = {
    "acceptance": "advisor.speculation.overview:AcceptanceReport",
    "calibration": "advisor.performance.measured:Calibration",
    "confirmation": "advisor.llamacpp.confirm:Confirmation",
    "devices": "advisor.cli.hardware:DeviceList",
    "diagnosis": "advisor.cli.doctor:Diagnosis",
    "hardware": "advisor.cli.hardware:ShownHardware",
    "inspection": "advisor.models.inspection:InspectReport",
    "model": "advisor.models.description:ModelDescription",
    "pair": "advisor.models.pairs:PairReport",
    "prediction": "advisor.speculation.prediction:Prediction",
    "recommendation": "advisor.advice.recommendation:Recommendation",
    "scan": "advisor.advice.recommendation:Scan",
    "setup": "advisor.hardware.machine:Setup",
    "validation": "advisor.validation.report:ValidationReport",
}
"""File name -> record."""


def schema(name: str) -> str:
    """The published text of one schema."""
    module, _, attribute = CONTRACTS[name].partition(":")
    record = getattr(importlib.import_module(module), attribute)
    assert issubclass(record, BaseModel)
    body = record.model_json_schema(mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **body}, indent=2) + "\n"


def stale() -> list[str]:
    """Names whose published file is missing or different."""
    return [name for name in CONTRACTS if _published(name) != schema(name)]


def _published(name: str) -> str | None:
    try:
        return (FOLDER / f"{name}.json").read_text(encoding="utf-8")
    except OSError:
        return None


def main() -> int:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    if parser.parse_args().check:
        old = stale()
        print("\n".join(f"docs/schemas/{name}.json is out of date" for name in old) or "all schemas are current")
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for name in CONTRACTS:
        (FOLDER / f"{name}.json").write_text(schema(name), encoding="utf-8", newline="\n")
    print(f"wrote {len(CONTRACTS)} schemas")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
