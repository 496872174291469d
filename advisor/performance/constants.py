"""The fitted constants: each with its unit, its uncertainty and what it rests on (``data/constants.json``)."""

from __future__ import annotations

import json
import re
from functools import lru_cache

from advisor.base import Frozen
from advisor.errors import InputError
from advisor.hardware.machine import Device
from advisor.resources import resource


class Constant(Frozen):
    """One constant of the physics.

    ``log_se`` is the standard error of its logarithm after the fit; ``rows``, ``devices`` and ``sources`` count the
    measurements that moved it. ``prior`` means that no measurement did: the value is an assumption.
    """

    value: float
    unit: str
    log_se: float
    rows: int = 0
    devices: int = 0
    sources: int = 0
    prior: bool = False


class Constants(Frozen):
    """Constants by dotted name, most general first: ``stream.cuda``, then a deviation ``stream.cuda.Volta``."""

    fitted: str
    """Date and tables of the fit, for display."""
    values: dict[str, Constant]

    def __getitem__(self, name: str) -> float:
        """Value of ``name``.

        Raises:
            KeyError: there is no such constant.
        """
        return self.values[name].value

    def get(self, name: str, default: float) -> float:
        """Value of ``name``, or ``default`` if there is no such constant."""
        found = self.values.get(name)
        return default if found is None else found.value

    def factor(self, *names: str) -> float:
        """Product of those of ``names`` that exist: deviations are factors around 1."""
        product = 1.0
        for name in names:
            if name in self.values:
                product *= self.values[name].value
        return product


@lru_cache(maxsize=1)
def load_constants() -> Constants:
    """The constants shipped with this package.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = resource("data", "constants.json")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Constants.model_validate(raw)
    except (OSError, ValueError) as error:
        raise InputError(f"The constants in {path.name} cannot be read: {error}", "Reinstall the package.") from error


_FAMILIES: tuple[tuple[str, str], ...] = (
    (r"gb10|sm_121", "GB10"),
    (r"sm_110|thor", "Thor"),
    (r"sm_87|orin", "Orin"),
    (r"sm_100|b200|b300", "Blackwell-HBM"),
    (r"blackwell", "Blackwell"),
    (r"hopper|h100|h200|h800|h20\b", "Hopper"),
    (r"ada", "Ada"),
    (r"ampere", "Ampere"),
    (r"turing", "Turing"),
    (r"volta", "Volta"),
    (r"pascal", "Pascal"),
    (r"maxwell", "Maxwell"),
    (r"kepler", "Kepler"),
    (r"rdna 3\.5|gfx115", "RDNA3.5"),
    (r"rdna 4", "RDNA4"),
    (r"rdna 3", "RDNA3"),
    (r"rdna 2", "RDNA2"),
    (r"rdna 1|rdna$", "RDNA1"),
    (r"cdna 1", "CDNA1"),
    (r"cdna", "CDNA2+"),
    (r"gcn|vega", "GCN"),
    (r"\bm1\b", "M1"),
    (r"\bm2\b", "M2"),
    (r"\bm3\b", "M3"),
    (r"\bm4\b", "M4"),
    (r"\bm5\b", "M5"),
    (r"xe2|xe3", "Xe2"),
    (r"xe", "Xe"),
)


def family_of(device: Device) -> str:
    """Architecture family the constants are kept by: ``Ampere``, ``RDNA3.5``, ``M4``; ``cpu`` or ``other``."""
    if device.is_cpu and device.vendor != "Qualcomm":
        return "server-cpu" if device.device_class == "server-cpu" else "cpu"
    told = (device.architecture or "").lower()
    for pattern, family in _FAMILIES:
        if re.search(pattern, told):
            if family == "Ampere" and re.search(r"a100|a30\b|170hx", device.slug.lower()):
                return "Ampere-HBM"
            return family
    name = f"{device.name} {device.slug}".lower()
    for pattern, family in _FAMILIES:
        if re.search(pattern, name):
            return family
    return "other"
