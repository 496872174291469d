"""The charts of a report: Vega-Lite specifications, drawn as SVG text by vl-convert.

Colours are CSS variables of the page, so one drawing serves light, dark and print. Charts hold numbers and our own
words only, never a name that came from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from advisor.report.document import RooflineView, Scatter, Sheet
from advisor.report.terminal import round_rows
from advisor.report.whatif import speedup_at
from advisor.speculation.prediction import CurvePoint
from advisor.text import clean

WIDTH = 290
"""Inner width of a chart [px]: with axes it fits a 360 px phone unscaled, so its letters stay legible."""
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def draw(spec: dict[str, Any], label: str) -> str | None:
    """SVG text of a specification with ``label`` as its accessible name; None if vl-convert is not installed."""
    try:
        import vl_convert
    except ImportError:
        return None
    svg: str = vl_convert.vegalite_to_svg({**base(), **spec})
    from markupsafe import escape

    head = f'<svg role="img" aria-label="{escape(label)}" '
    # The page's own label replaces Vega's many: a screen reader hears one sentence, then the table below the chart.
    return svg.replace("<svg ", head, 1).replace('role="graphics-', 'data-role="graphics-')


def base() -> dict[str, Any]:
    """What all charts share: size, letters, colours as CSS variables."""
    text = {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "titleFontWeight": "normal"}
    lines = {"gridColor": "var(--line)", "domainColor": "var(--muted)", "tickColor": "var(--muted)"}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": None,
        "width": WIDTH,
        "height": 200,
        "config": {
            "font": _FONT,
            "axis": {
                **text,
                **lines,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "labelFlush": False,
                "labelSeparation": 5,
            },
            "legend": {
                **text,
                "labelFontSize": 12,
                "orient": "bottom",
                "title": None,
                "direction": "horizontal",
                "columnPadding": 18,
            },
            "view": {"stroke": None},
            "text": {"color": "var(--text)", "fontSize": 12},
            "aria": False,
        },
    }


def _rule_at_one() -> dict[str, Any]:
    return {
        "data": {"values": [{"one": 1}]},
        "mark": {"type": "rule", "color": "var(--muted)", "strokeDash": [4, 3]},
        "encoding": {"y": {"field": "one", "type": "quantitative"}},
    }


def speedup_by_length(sheet: Sheet) -> dict[str, Any]:
    """Speedup with its range against draft length, break-even dashed, the used length marked."""
    p = sheet.prediction
    rows = [
        {"k": c.draft_max, "speedup": c.speedup.median, "low": c.speedup.low, "high": c.speedup.high} for c in p.curve
    ]
    used = [r for r in rows if r["k"] == p.draft_max]
    wide = max((r["k"] for r in rows), default=1) > 16
    x: dict[str, Any] = {
        "field": "k",
        "type": "quantitative",
        "title": "draft length k",
        "axis": {
            "tickMinStep": 1,
            "grid": False,
            **({} if wide else {"values": [r["k"] for r in rows]}),
            "format": "d",
        },
        "scale": {"zero": False, "nice": False, "padding": 12},
    }
    y = {"type": "quantitative", "title": "speedup", "scale": {"zero": True}}
    return {
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "area", "color": "var(--with)", "opacity": 0.2},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            _rule_at_one(),
            {
                "mark": {"type": "line", "color": "var(--with)", "point": {"color": "var(--with)", "size": 30}},
                "encoding": {"x": x, "y": {**y, "field": "speedup"}},
            },
            {
                "data": {"values": used},
                "mark": {"type": "point", "color": "var(--with)", "size": 160, "strokeWidth": 2},
                "encoding": {"x": x, "y": {**y, "field": "speedup"}},
            },
        ],
    }


def speedup_picture(points: Sequence[tuple[str, CurvePoint]], measured: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Several curves of speedup by draft length in one picture, with measured values at draft length 3 as crosses."""
    names = list(dict.fromkeys(name for name, _ in points))
    colour = {
        "field": "pair",
        "type": "nominal",
        "scale": {"domain": names, "range": ["var(--with)", "var(--bad)"]},
        "legend": None,
    }
    rows = [
        {"pair": n, "k": c.draft_max, "speedup": c.speedup.median, "low": c.speedup.low, "high": c.speedup.high}
        for n, c in points
    ]
    seen = [
        {"pair": name, "k": 3, "speedup": value, "text": f"{clean(name, 60)}: {value:.2f}x measured"}
        for name, value in measured
    ]
    scale = {"zero": False, "nice": False, "padding": 14}
    x = {
        "field": "k", "type": "quantitative", "title": "draft length k",
        "axis": {"grid": False, "format": "d"}, "scale": scale,
    }  # fmt: skip
    y = {"type": "quantitative", "title": "speedup", "scale": {"zero": True}}
    return {
        "width": 560,
        "height": 240,
        "data": {"values": rows},
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.18},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
            },
            _rule_at_one(),
            {
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": {**y, "field": "speedup"}, "color": colour},
            },
            {
                "data": {"values": seen},
                "mark": {"type": "point", "shape": "cross", "filled": True, "size": 160, "opacity": 1},
                "encoding": {"x": x, "y": {**y, "field": "speedup"}, "color": colour},
            },
            {
                "data": {"values": seen},
                "mark": {"type": "text", "align": "left", "dx": 12, "color": "var(--text)"},
                "encoding": {"x": x, "y": {**y, "field": "speedup"}, "text": {"field": "text"}},
            },
        ],
    }


def speedup_by_acceptance(sheet: Sheet) -> dict[str, Any]:
    """Speedup against acceptance at the used draft length, with the estimate's range and the break-even."""
    p = sheet.prediction
    rows = [{"rate": r / 20, "speedup": speedup_at(sheet, r / 20)} for r in range(21)]
    rate = p.acceptance.rate
    x: dict[str, Any] = {
        "type": "quantitative",
        "title": f"accepted / drafted at k = {p.draft_max}",
        "axis": {"format": "%", "grid": False, "tickCount": 5},
        "scale": {"domain": [0, 1]},
    }
    y = {"type": "quantitative", "title": "speedup", "scale": {"zero": True}}
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [{"low": rate.low, "high": rate.high}]},
            "mark": {"type": "rect", "color": "var(--with)", "opacity": 0.2},
            "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
        },
        _rule_at_one(),
        {
            "data": {"values": rows},
            "mark": {"type": "line", "color": "var(--with)"},
            "encoding": {"x": {**x, "field": "rate"}, "y": {**y, "field": "speedup"}},
        },
        {
            "data": {"values": [{"rate": rate.median, "speedup": p.speedup.median}]},
            "mark": {"type": "point", "color": "var(--with)", "size": 160, "strokeWidth": 2},
            "encoding": {"x": {**x, "field": "rate"}, "y": {**y, "field": "speedup"}},
        },
    ]
    if p.break_even_acceptance:
        layers.append({
            "data": {"values": [{"rate": p.break_even_acceptance}]},
            "mark": {"type": "rule", "color": "var(--bad)", "strokeDash": [4, 3]},
            "encoding": {"x": {**x, "field": "rate"}},
        })  # fmt: skip
    return {"layer": layers}


def round_parts(sheet: Sheet) -> dict[str, Any]:
    """One round against the same tokens without drafting: bars of draft, verify, overhead, rollback [decode steps]."""
    p = sheet.prediction
    rows: list[dict[str, Any]] = [
        {"arm": "with", "part": name, "steps": value, "order": i} for i, (name, value) in enumerate(round_rows(p))
    ]
    rows.append({"arm": "without", "part": "decode", "steps": p.mean_accepted_length, "order": 0})
    colours = {
        "draft": "var(--draft)", "verify": "var(--with)", "overhead": "var(--overhead)",
        "rollback": "var(--rollback)", "decode": "var(--without)",
    }  # fmt: skip
    names = [str(row["part"]) for row in rows]
    scale = {"domain": names, "range": [colours[name] for name in names]}
    return {
        "data": {"values": rows},
        "height": 90,
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "y": {"field": "arm", "type": "nominal", "title": None, "sort": ["without", "with"]},
            "x": {
                "field": "steps",
                "type": "quantitative",
                "title": f"decode steps for {p.mean_accepted_length:.2f} tokens",
            },
            "color": {"field": "part", "type": "nominal", "scale": scale},
            "order": {"field": "order"},
        },
    }


def roofline(view: RooflineView) -> dict[str, Any]:
    """Both ceilings on logarithmic axes, and the passes below them."""
    knee = view.peak * 1000 / view.bandwidth
    left = min([x.intensity for x in view.points] + [knee]) / 3
    right = max([x.intensity for x in view.points] + [knee]) * 4
    roof = [
        {"intensity": left, "rate": left * view.bandwidth / 1000},
        {"intensity": knee, "rate": view.peak},
        {"intensity": right, "rate": view.peak},
    ]
    bottom = min([x.rate for x in view.points] + [roof[0]["rate"]]) / 2
    x = {
        "field": "intensity",
        "type": "quantitative",
        "title": "FLOP per byte",
        "scale": {"type": "log", "domain": [left, right], "nice": False},
        "axis": {"grid": False, "tickCount": 4, "format": "~g"},
    }
    y = {
        "field": "rate",
        "type": "quantitative",
        "title": "TFLOP/s",
        "scale": {"type": "log", "domain": [bottom, view.peak * 2], "nice": False},
        "axis": {"tickCount": 4, "format": "~g"},
    }
    points = [{"intensity": p.intensity, "rate": p.rate, "pass": clean(p.name, 40)} for p in view.points]
    names = list(dict.fromkeys(str(x["pass"]) for x in points))
    palette = ("var(--without)", "var(--with)", "var(--draft)", "var(--overhead)")
    return {
        "layer": [
            {
                "data": {"values": roof},
                "mark": {"type": "line", "color": "var(--muted)", "strokeWidth": 2},
                "encoding": {"x": x, "y": y},
            },
            {
                "data": {"values": points},
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "x": x,
                    "y": y,
                    "color": {
                        "field": "pass",
                        "type": "nominal",
                        "scale": {"domain": names, "range": [palette[i % 4] for i in range(len(names))]},
                    },
                    "shape": {"field": "pass", "type": "nominal", "scale": {"domain": names}},
                },
            },
        ]
    }


def comparison(sheets: tuple[Sheet, ...]) -> dict[str, Any]:
    """Speedup ranges of all sheets under each other, numbered as in the table above them."""
    rows = [
        {"sheet": f"{i + 1}", "speedup": s.prediction.speedup.median,
         "low": s.prediction.speedup.low, "high": s.prediction.speedup.high}
        for i, s in enumerate(sheets)
    ]  # fmt: skip
    y = {"field": "sheet", "type": "nominal", "title": None, "sort": None}
    x = {"type": "quantitative", "title": "speedup", "scale": {"zero": True}, "axis": {"tickCount": 5}}
    one = _rule_at_one()
    one["encoding"] = {"x": one["encoding"]["y"]}
    return {
        "data": {"values": rows},
        "height": {"step": 28},
        "layer": [
            one,
            {
                "mark": {"type": "rule", "color": "var(--with)", "strokeWidth": 6, "opacity": 0.35},
                "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "color": "var(--with)", "size": 90, "opacity": 1},
                "encoding": {"y": y, "x": {**x, "field": "speedup"}},
            },
        ],
    }


def scatter(plot: Scatter) -> dict[str, Any]:
    """Predicted with its range against measured, both logarithmic, and the line of perfect predictions."""
    rows = [
        {"predicted": p.predicted, "low": p.low, "high": p.high, "measured": p.measured,
         "inside": "inside its range" if p.low <= p.measured <= p.high else "outside"}
        for p in plot.points
        if min(p.predicted, p.low, p.high, p.measured) > 0
    ]  # fmt: skip
    values = [v for row in rows for v in (row["predicted"], row["measured"]) if isinstance(v, float)]
    ends = [min(values, default=0.5) / 1.1, max(values, default=2.0) * 1.1]
    steps = (1, 2, 5) if ends[1] / ends[0] > 30 else (1, 1.5, 2, 3, 5, 7)
    ticks = [m * 10**e for e in range(-4, 6) for m in steps if ends[0] <= m * 10**e <= ends[1]]
    axis = {
        "type": "quantitative",
        "scale": {"type": "log", "domain": ends, "nice": False},
        "axis": {"values": ticks, "format": "~g"},
    }
    x = {**axis, "field": "measured", "title": f"measured, {clean(plot.unit, 20)}"}
    y = {**axis, "title": f"predicted, {clean(plot.unit, 20)}"}
    colour = {
        "field": "inside",
        "type": "nominal",
        "scale": {"domain": ["inside its range", "outside"], "range": ["var(--with)", "var(--draft)"]},
    }
    return {
        "data": {"values": rows},
        "height": WIDTH,
        "layer": [
            {
                "data": {"values": [{"measured": e, "predicted": e} for e in ends]},
                "mark": {"type": "line", "color": "var(--muted)", "strokeDash": [4, 3]},
                "encoding": {"x": x, "y": {**y, "field": "predicted"}},
            },
            {
                "mark": {"type": "rule", "opacity": 0.3, "clip": True},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 25, "opacity": 0.8, "clip": True},
                "encoding": {"x": x, "y": {**y, "field": "predicted"}, "color": colour},
            },
        ],
    }


def measured(sheet: Sheet) -> dict[str, Any]:
    """Predicted and measured ranges of every compared quantity, each relative to its measured value."""
    rows: list[dict[str, Any]] = []
    for compared in sheet.compared:
        if compared.measured is None or compared.measured.median <= 0:
            continue
        scale = 1 / compared.measured.median
        for arm, interval in (("predicted", compared.predicted), ("measured", compared.measured)):
            if interval is not None:
                rows.append({
                    "quantity": clean(compared.quantity, 40), "arm": arm, "value": interval.median * scale,
                    "low": interval.low * scale, "high": interval.high * scale,
                })  # fmt: skip
    axis = {"labelLimit": 150}
    y: dict[str, Any] = {"field": "quantity", "type": "nominal", "title": None, "sort": None, "axis": axis}
    offset = {"field": "arm", "sort": ["predicted", "measured"]}
    colour = {
        "field": "arm",
        "type": "nominal",
        "scale": {"domain": ["predicted", "measured"], "range": ["var(--with)", "var(--text)"]},
    }
    ends = [v for row in rows for v in (row["low"], row["high"]) if v > 0]
    # A short or disturbed run has an interval of any width; beyond a factor of eight only "far off" is worth showing.
    domain = [max(min(ends, default=0.5), 1 / 8) / 1.05, min(max(ends, default=2), 8) * 1.05]
    x = {
        "type": "quantitative",
        "title": "relative to the measured value",
        "scale": {"type": "log", "domain": domain, "nice": False, "clamp": True},
        "axis": {"tickCount": 4, "format": "~g"},
    }
    return {
        "data": {"values": rows},
        "height": {"step": 16, "for": "offset"},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 3},
                "encoding": {
                    "y": y, "yOffset": offset, "color": colour, "x": {**x, "field": "low"}, "x2": {"field": "high"},
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": {"y": y, "yOffset": offset, "color": colour, "x": {**x, "field": "value"}},
            },
        ],
    }  # fmt: skip


__all__ = [
    "comparison",
    "draw",
    "measured",
    "roofline",
    "round_parts",
    "scatter",
    "speedup_by_acceptance",
    "speedup_by_length",
    "speedup_picture",
]
