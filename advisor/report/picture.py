"""A roofline as a picture of its own: SVG or PNG, in the light colours of a report."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from advisor.errors import InputError
from advisor.performance.roofline import Roofline
from advisor.report.charts import base, roofline
from advisor.report.document import PassPoint, RooflineView

_LIGHT = {
    "text": "#1b1f24", "muted": "#57606a", "line": "#d5dbe1", "with": "#0a63c2", "without": "#7d8590",
    "draft": "#b45f06", "overhead": "#8250df",
}  # fmt: skip
SIZE = (520, 320)
"""Inner width and height [px]."""


def view_of(result: Roofline, note: str = "") -> RooflineView:
    """The part of a roofline that a chart shows."""
    points = tuple(
        PassPoint(name=p.name, intensity=p.intensity, rate=p.rate, milliseconds=p.milliseconds) for p in result.points
    )
    return RooflineView(bandwidth=result.bandwidth.value, peak=result.peak.value, points=points, note=note)


def specification(result: Roofline) -> dict[str, Any]:
    """Vega-Lite specification of the picture, with real colours instead of a page's variables."""
    spec = {**base(), **roofline(view_of(result)), "width": SIZE[0], "height": SIZE[1], "background": "white"}
    coloured = re.sub(r"var\(--([a-z]+)\)", lambda m: _LIGHT[m[1]], json.dumps(spec))
    found: dict[str, Any] = json.loads(coloured)
    return found


def write_roofline(result: Roofline, path: Path) -> None:
    """Write the picture; the ending of ``path`` decides the format. The file is whole or absent.

    Raises:
        InputError: another ending, vl-convert missing, or the file cannot be written.
    """
    try:
        import vl_convert
    except ImportError:
        raise InputError("Pictures need the package vl-convert-python.", "Install draft-advisor[report].") from None
    spec = specification(result)
    if path.suffix.lower() == ".svg":
        data = vl_convert.vegalite_to_svg(spec).encode()
    elif path.suffix.lower() == ".png":
        data = vl_convert.vegalite_to_png(spec, scale=2)
    else:
        raise InputError(f"{path} is neither .svg nor .png.", "Choose one of the two endings.")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}.", "Choose another place.") from error
    finally:
        unfinished.unlink(missing_ok=True)
