"""A report as one HTML file that opens offline, escapes everything, and computes what-ifs by itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.base import Range
from advisor.report.console import (
    format_bytes,
    format_figure,
    format_memory,
    format_number,
    format_range,
    kind_note,
)
from advisor.report.document import Report, Scatter, Sheet
from advisor.report.terminal import METHOD_NAMES, model_name, other_reasons, round_rows, title_of, verdict_words
from advisor.speculation.prediction import ModelSummary
from advisor.text import clean

if TYPE_CHECKING:
    from advisor.report.build import Reportable

_TEMPLATES = Path(__file__).with_name("templates")
_TONES = {"faster": "good", "slower": "bad", "incompatible": "bad", "does not fit": "bad"}


def render_html(report: Report) -> str:
    """The whole page as text.

    Names, reasons and sources are cleaned of control characters and escaped by Jinja's autoescape; data for the
    script is JSON in which ``<``, ``>`` and ``&`` are written as escapes; a content security policy allows only the
    page's own script by its hash, and no request of any kind.
    """
    from markupsafe import Markup

    from advisor.report.charts import comparison, draw

    css, script = _asset("report.css"), _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    views = [_view(sheet) for sheet in report.sheets]
    side = None
    if len(report.sheets) > 1:
        side = draw(comparison(report.sheets), f"Speedup ranges of {len(report.sheets)} candidates")
    page: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            views=views,
            comparison=Markup(side) if side else None,
            drawn=not views or any(view["charts"]["length"] for view in views),
            scatters=[_scatter(x) for x in report.scatters],
            css=Markup(css),
            script=Markup(script),
            script_hash=digest,
        )
    )
    return page


@lru_cache(maxsize=4)
def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: object) -> object:
        # Markup is text of our own making (style, script, charts); everything else may have come from a model file.
        return clean(value, 4000) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        range=format_range,
        ends=_ends,
        bytes=format_bytes,
        memory=format_memory,
        number=format_number,
        figure=format_figure,
        kind_note=kind_note,
        model=_model,
        model_name=model_name,
        origin=shape_kind,
        lines=_lines,
    )
    return environment


def _ends(interval: Range) -> str:
    return f"{format_number(interval.low)} to {format_number(interval.high)}"


def _model(model: ModelSummary) -> str:
    """Where a model's shape comes from and how large it is."""
    total, active = format_number(model.total_parameters / 1e9), format_number(model.active_parameters / 1e9)
    where = {"catalogue": "catalogue", "gguf": "header of the file", "hub-gguf": "header on the Hub"}
    origin = where.get(model.source, "config on the Hub")
    size = format_bytes(model.size_bytes)
    return f"{origin}: {model.architecture}, {model.quant}, {size}, {total}B weights, {active}B active"


def shape_kind(model: ModelSummary) -> str:
    """Provenance of a model's sizes: read from the very file, or from what was published about it."""
    return "measured" if model.source == "gguf" else "published"


def _lines(text: str) -> Any:
    """A command over several lines: each line cleaned and escaped, the line breaks kept."""
    from markupsafe import Markup, escape

    return Markup("\n").join(escape(clean(line, 4000)) for line in text.split("\n"))


def script_json(text: str) -> Any:
    """JSON safe inside a ``<script>`` element: nothing in it can end the element or start a comment."""
    from markupsafe import Markup

    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _scatter(plot: Scatter) -> dict[str, Any]:
    from markupsafe import Markup

    from advisor.report.charts import draw, scatter

    label = f"Scatter plot of {len(plot.points)} predictions against measurements; the table above sums them up."
    svg = draw(scatter(plot), label)
    return {"plot": plot, "svg": Markup(svg) if svg else None}


def _view(sheet: Sheet) -> dict[str, Any]:
    """What the template shows of one sheet besides the sheet itself."""
    from markupsafe import Markup

    from advisor.report import charts

    p = sheet.prediction
    word, sentence = verdict_words(p)
    ratio = f"{p.speedup.median:.2f}"
    drawn: dict[str, Any] = {}
    for name, spec, label in (
        ("length", charts.speedup_by_length(sheet) if p.curve else None,
         f"Line chart of speedup by draft length; {ratio} times at {p.draft_max}, best at {p.best.draft_max}."),
        ("acceptance", charts.speedup_by_acceptance(sheet),
         f"Line chart of speedup by acceptance; {ratio} times at {p.acceptance.rate.median:.0%}."),
        ("round", charts.round_parts(sheet),
         f"Bars, in decode steps of one round: {', '.join(f'{name} {value:.2f}' for name, value in round_rows(p))}; "
         f"without drafting its tokens cost {p.mean_accepted_length:.2f}."),
        ("roofline", charts.roofline(sheet.roofline) if sheet.roofline else None,
         "Roofline with the passes of one round; the numbers are in the table below."),
        ("measured", charts.measured(sheet) if any(c.measured for c in sheet.compared) else None,
         "Predicted and measured ranges; the numbers are in the table below."),
    ):  # fmt: skip
        svg = charts.draw(spec, label) if spec is not None else None
        drawn[name] = Markup(svg) if svg else None
    what_if = sheet.what_if
    return {
        "sheet": sheet,
        "prediction": p,
        "pair": title_of(p),
        "method": METHOD_NAMES.get(p.method, p.method),
        "word": word,
        "sentence": sentence,
        "reasons": other_reasons(p, sentence),
        "tone": _TONES.get(p.verdict, ""),
        "fits": {True: "fits", False: "does not fit", None: "capacity not known"}[p.memory.fits],
        "tokenizer": {True: "compatible", False: "not compatible", None: "not known"}[p.tokenizer.compatible],
        "charts": drawn,
        "parts": round_rows(p),
        "round_note": f"One round costs {p.round.cost:.2f} decode steps ({format_number(p.round.milliseconds)} ms) and "
        f"yields {p.mean_accepted_length:.2f} tokens.",
        "roofline_note": sheet.roofline.note if sheet.roofline else "",
        "curves": script_json(what_if.model_dump_json()) if what_if else None,
        "length_index": what_if.lengths.index(p.draft_max) if what_if and p.draft_max in what_if.lengths else 0,
    }


def write_html(path: Path, items: Sequence[Reportable], title: str | None = None) -> Path:
    """Write answers as one HTML file, side by side if there are several.

    Raises:
        InputError: the file cannot be written.
    """
    from advisor.report.build import report_from
    from advisor.report.write import write_text

    return write_text(path, render_html(report_from(items, title)))
