"""Reports and screens without a browser: what they say, how they fit, and that no text gets out of its place."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import HOSTILE, around, curves, hostile_sheet, prediction, sheet
from rich.console import Console

from advisor.base import Range
from advisor.errors import InputError
from advisor.report import build, console, html, markdown, terminal, whatif, write
from advisor.report.document import Report
from advisor.speculation.conversions import acceptance, mean_length, positions_from_acceptance
from advisor.speculation.prediction import BestDraftLength, Method, TokenizerVerdict


def printed(item: object, width: int = 80, encoding: str = "utf-8", colour: bool = False) -> str:
    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    out = Console(file=buffer, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    out.print(item, crop=False)
    buffer.flush()
    assert isinstance(buffer.buffer, io.BytesIO)
    return buffer.buffer.getvalue().decode(encoding)


# ---------------------------------------------------------------- the screen


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_screen_fits_its_width_and_says_everything(width: int, encoding: str) -> None:
    text = printed(terminal.prediction_screen(prediction()), width, encoding)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines if not line.startswith("  advisor confirm"))
    assert len(lines) <= (48 if width >= 72 else 52)
    assert "FASTER: 1.58x" in text
    for needle in ("7.09", "11.2", "0.31", "1.42", "0.12", "29 %", "29.3 GiB", "89.4 GiB", "published", "product page"):
        assert needle in text, needle
    if encoding == "ascii":
        assert text.isascii()
        assert "?" not in text  # nothing was lost on the way to ASCII


def test_verdict_comes_before_any_detail() -> None:
    text = printed(terminal.prediction_screen(prediction()))
    assert text.index("FASTER") < text.index("tok/s") < text.index("acceptance") < text.index("rests on")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "slower", "speedup": around(0.57), "probability_faster": 0.001}, ["SLOWER", "0.57x", "under 1 %"]),
        ({"verdict": "too close to call", "speedup": around(1.01), "probability_faster": 0.5}, ["TOO CLOSE", "50 %"]),
        (
            {"verdict": "incompatible", "tokenizer": TokenizerVerdict(compatible=False, reason="Token 139 differs.")},
            ["WILL NOT RUN", "Token 139 differs."],
        ),
        ({"break_even_acceptance": None}, ["no acceptance rate wins at 3"]),
        ({"best": BestDraftLength(draft_max=0, speedup=1.0)}, ["no drafting at all"]),
    ],
)
def test_every_verdict_has_its_words(changes: dict[str, object], words: list[str]) -> None:
    text = " ".join(printed(terminal.prediction_screen(prediction(**changes))).split())
    for word in words:
        assert word in text


def test_what_does_not_fit_says_by_how_much() -> None:
    p = prediction()
    device = p.memory.devices[0].model_copy(update={"capacity": 24_000_000_000, "fits": False})
    memory = p.memory.model_copy(update={"devices": (device,), "fits": False})
    text = printed(terminal.prediction_screen(prediction(memory=memory, verdict="does not fit")))
    assert "DOES NOT FIT" in text
    assert "29.3 GiB" in text
    assert "22.4 GiB" in text


def test_colour_is_not_needed_to_read_the_screen() -> None:
    plain = printed(terminal.prediction_screen(prediction()))
    coloured = printed(terminal.prediction_screen(prediction()), colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_control_character_of_a_name_reaches_the_terminal(encoding: str) -> None:
    bad = hostile_sheet().prediction
    text = printed(terminal.prediction_screen(bad, figures=None), encoding=encoding)
    assert not [c for c in text if c != "\n" and (ord(c) < 32 or c in "\x7f\u202e")]


def test_printed_command_passes_the_name_and_nothing_else() -> None:
    p = prediction()
    name = "it's $(touch pwned) `x` | y; z"
    for reference in (name, HOSTILE, "--json", "a b.gguf"):
        local = p.target.model_copy(update={"reference": reference, "source": "gguf"})
        command = terminal.confirm_command(p.model_copy(update={"target": local}))
        shown = subprocess.run(
            ["bash", "-c", f"advisor() {{ printf '%s\\0' \"$@\"; }}; {command}"], capture_output=True, check=True
        )
        expected = f"./{reference}" if reference.startswith("-") else reference
        assert shown.stdout.decode().split("\0") == [
            "confirm", expected, "Qwen3.5-2B-Q8_0.gguf", "--draft-max", "3", "",
        ]  # fmt: skip
        assert not [c for c in command if ord(c) < 32]


def test_what_is_not_on_this_disk_is_said_before_the_command() -> None:
    p = prediction()
    assert shlex.split(terminal.confirm_command(p)) == [
        "advisor", "confirm", "Qwen3.5-27B-Q8_0.gguf", "Qwen3.5-2B-Q8_0.gguf", "--draft-max", "3",
    ]  # fmt: skip
    assert "once the files are here" in terminal.proof(p)
    assert p.draft is not None
    here = {name: m.model_copy(update={"source": "gguf"}) for name, m in (("target", p.target), ("draft", p.draft))}
    assert terminal.proof(p.model_copy(update=here)) == "Prove it"


@given(
    st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 1), st.integers(1, 60), st.floats(0.1, 12),
    st.one_of(st.none(), st.floats(0, 3)), st.booleans(),
)  # fmt: skip
def test_bars_never_leave_their_cells(
    median: float, down: float, up: float, width: int, full: float, mark: float | None, ascii_only: bool
) -> None:
    interval = Range(median=median, low=median * (1 - down), high=median * (1 + up))
    drawn = terminal.range_bar(interval, full, width, mark, ascii_only)
    assert len(drawn) <= width
    assert len(terminal.bar(median, full, width, ascii_only)) <= width
    if mark is not None and mark / full * width < width - 0.5:
        assert ("|" if ascii_only else "│") in drawn


def test_curve_is_thinned_to_the_lengths_that_matter() -> None:
    p = prediction()
    long = tuple(p.curve[0].model_copy(update={"draft_max": k}) for k in range(1, 65))
    points = terminal.chosen_lengths(p.model_copy(update={"curve": long, "draft_max": 37}), 8)
    assert len(points) == 8
    assert {1, 4, 37} <= {x.draft_max for x in points}
    assert [x.draft_max for x in points] == sorted(x.draft_max for x in points)


# ---------------------------------------------------------------- numbers


@given(st.floats(1e-6, 1e9))
def test_numbers_keep_three_digits(value: float) -> None:
    text = console.format_number(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.996, "10.0"), (0.09996, "0.100"), (7.0949, "7.09"), (1280, "1280"), (0, "0"), (float("nan"), "?")],
)
def test_numbers_at_the_edges(value: float, text: str) -> None:
    assert console.format_number(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (999.7e6, "1.00 GB"), (27.5e9, "27.5 GB"), (1.2e12, "1.20 TB")]
)
def test_bytes_are_decimal(count: float, text: str) -> None:
    assert console.format_bytes(count) == text


@pytest.mark.parametrize(("count", "text"), [(512, "512 B"), (2**20, "1.00 MiB"), (24 * 2**30, "24.0 GiB")])
def test_memory_is_binary(count: int, text: str) -> None:
    assert console.format_memory(count) == text


def test_console_survives_a_stream_that_cannot_spell(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    console.console(width=80).print("naïve 模型 [bold]x[/bold] :smile:")
    stream.flush()
    assert stream.buffer.getvalue() == b"na?ve ?? [bold]x[/bold] :smile:\n"  # type: ignore[attr-defined]  # a BytesIO


# ---------------------------------------------------------------- the page


class Elements(HTMLParser):
    """Tags with attributes, and the text inside scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._script: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs) if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
            self._script = None


def parsed(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    return elements


@pytest.fixture(scope="module")
def page() -> str:
    return html.render_html(build.report_from([sheet(), sheet(prediction=prediction(hardware="RTX 3090"))]))


def test_page_is_self_contained_and_small(page: str) -> None:
    assert len(page.encode()) < 2_000_000
    elements = parsed(page)
    assert not [
        t for t, _ in elements.tags if t in ("link", "iframe", "object", "embed", "img", "base") and t != "link"
    ]
    for tag, attributes in elements.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "action", "data", "srcset", "xlink:href", "poster"):
                assert value is not None
                assert value.startswith(("#", "data:")), (tag, name, value)
    assert not re.findall(r"@import|url\((?!#)", page)


def test_page_tells_the_whole_story(page: str) -> None:
    for needle in (
        "Side by side", "RTX 3090", "Faster", "1.58x", "Where a round", "Roofline", "Memory", "Same vocabulary family",
        "ten times smaller", "Predicted against measured", "llama-server -m a.gguf", "What if?", "product page",
        "12 published runs", "The boost clock under load is not known.",
    ):  # fmt: skip
        assert needle in page, needle
    assert page.count("<svg ") == 1 + 2 * 5


def test_every_figure_and_input_has_a_name(page: str) -> None:
    elements = parsed(page)
    for tag, attributes in elements.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "html":
            assert attributes["lang"] == "en"
        if attributes.get("role") == "region":
            assert attributes.get("aria-label") or attributes.get("aria-labelledby")
    identifiers = [a["id"] for _, a in elements.tags if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    assert {a["href"] for t, a in elements.tags if t == "a" and a.get("href", "")} <= {f"#{i}" for i in identifiers}


@pytest.mark.parametrize("copies", [1, 2])
def test_hostile_names_stay_text(copies: int) -> None:
    bad, good = hostile_sheet(), sheet()
    page = html.render_html(build.report_from([bad] * copies, title=HOSTILE))
    innocent = html.render_html(build.report_from([good] * copies))
    elements, expected = parsed(page), parsed(innocent)
    # The same elements as with innocent names: nothing was injected, nothing was cut off.
    count = [t for t, _ in elements.tags if t in ("script", "img", "style", "form", "iframe")]
    assert count == [t for t, _ in expected.tags if t in ("script", "img", "style", "form", "iframe")]
    assert not [a for _, a in elements.tags if any(name.startswith("on") for name in a)]
    assert "{{7*7}}" in page  # shown as written: no second template engine looked at it
    assert "\x1b" not in page
    assert "\u202e" not in page


@given(st.text(max_size=60))
@settings(max_examples=60)
def test_data_blocks_cannot_be_left(name: str) -> None:
    block = html.script_json(json.dumps({"name": name + "</script><!--"}, ensure_ascii=False))
    assert not re.search(r"[<>&\u2028\u2029]", block)
    assert json.loads(block) == {"name": name + "</script><!--"}


def test_page_without_the_chart_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page = html.render_html(build.report_from([sheet()]))
    assert "<svg" not in page
    assert "draft-advisor[report]" in page
    assert "1.58x" in page


# ---------------------------------------------------------------- Markdown and JSON


def test_markdown_tells_the_same() -> None:
    text = markdown.render_markdown(build.report_from([sheet(), sheet()]))
    for needle in ("**Faster.**", "1.58x (1.39-1.77)", "| 3 | 1.84 |", "llama-server -m a.gguf \\", "product page"):
        assert needle in text, needle
    widths = {line.count("|") for line in text.splitlines() if line.startswith("| 3 |")}
    assert len(widths) == 1


def test_markdown_escapes_names_and_fences_commands() -> None:
    from markdown_it import MarkdownIt

    text = markdown.render_markdown(build.report_from([hostile_sheet()]))
    shown = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    tags = {tag for tag, _ in parsed(shown).tags}
    plain = {"h1", "h2", "h3", "p", "strong", "ul", "li", "table", "thead", "tbody", "tr", "th", "td", "pre", "code"}
    assert tags <= plain


@given(st.text(st.characters(codec="utf-8"), max_size=80))
def test_code_blocks_cannot_be_left(text: str) -> None:
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(markdown.code_block(text + "\n```\n# out"))
    assert [t.type for t in tokens] == ["fence"]


def test_json_is_the_report_itself() -> None:
    report = build.report_from([sheet()])
    assert Report.model_validate_json(write.render(report, ".json")) == report


# ---------------------------------------------------------------- files


def test_file_name_decides_the_form(tmp_path: Path) -> None:
    report = build.report_from([sheet()])
    starts = {}
    for name in ("a.html", "a.HTM", "a.md", "a.json"):
        starts[name] = write.write_report(tmp_path / name, report).read_text(encoding="utf-8")[:1]
    assert starts == {"a.html": "<", "a.HTM": "<", "a.md": "#", "a.json": "{"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.HTM", "a.html", "a.json", "a.md"]


def test_bad_destinations_are_one_sentence_and_leave_nothing(tmp_path: Path) -> None:
    report = build.report_from([sheet()])
    with pytest.raises(InputError, match=r"a\.pdf"):
        write.write_report(tmp_path / "a.pdf", report)
    with pytest.raises(InputError, match="Cannot write"):
        write.write_report(tmp_path / "missing" / "a.md", report)
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match="Cannot write"):
        write.write_report(tmp_path / "folder.html", report)
    assert [p.name for p in tmp_path.iterdir()] == ["folder.html"]


# ---------------------------------------------------------------- what if


@given(st.floats(0, 1), st.integers(1, 8), st.integers(1, 8))
def test_page_arithmetic_is_that_of_the_library(rate: float, at: int, k: int) -> None:
    shipped = curves(reported_at=at, offsets=())
    tokens, speedup = whatif.answer(shipped, 2048, k, rate)
    steps = positions_from_acceptance(rate, at)[:1] * k
    assert tokens == pytest.approx(mean_length(steps), rel=1e-6)
    assert speedup == pytest.approx(mean_length(steps) / (1 + 0.3005 * k), rel=0.01)
    assert acceptance(whatif.shape(rate, at, at, (0.3, -0.2))) == pytest.approx(rate, abs=1e-6)


def test_rates_between_the_shipped_ones_are_interpolated() -> None:
    row = tuple(float(i * i) for i in range(21))
    rates = tuple(i / 20 for i in range(21))
    assert whatif.between(row, rates, 0.5) == 100
    assert whatif.between(row, rates, 0.525) == pytest.approx((100 + 121) / 2)
    assert whatif.between((3.0,), rates, 0.7) == 3.0


def test_asking_for_what_was_not_shipped_is_refused() -> None:
    with pytest.raises(InputError):
        whatif.answer(curves(), 12345, 3, 0.5)
    with pytest.raises(InputError):
        whatif.answer(curves(), 2048, 99, 0.5)


@pytest.mark.parametrize(
    ("target", "draft", "method", "p_min"),
    [
        ("gpt-oss-120b:MXFP4", "gpt-oss-20b:MXFP4", "draft-simple", 0.0),  # nothing to roll back
        ("qwen3.5-27b:Q8_0", "qwen3.5-2b:Q8_0", "draft-simple", 0.0),  # checkpoints: the cost depends on acceptance
        ("qwen3.5-27b:Q8_0", "qwen3.5-2b:Q8_0", "draft-simple", 0.5),  # a gate: yield and cost depend on it
        ("qwen3.5-27b:Q8_0", None, "draft-mtp", 0.0),
        ("qwen3-32b:Q4_K_M", None, "ngram-simple", 0.0),
    ],
)
def test_shipped_curves_answer_like_the_predictor(target: str, draft: str | None, method: Method, p_min: float) -> None:
    from advisor.hardware.resolve import resolve
    from advisor.models.catalogue import describe_catalogue
    from advisor.speculation.predict import predict

    one = describe_catalogue(target, mtp=True if method == "draft-mtp" else None)
    two = describe_catalogue(draft) if draft else None
    setup = resolve("395")
    stated = {"setup": setup, "method": method, "draft_max": 3, "acceptance": 0.643, "depth": 1000, "p_min": p_min}
    built = build.sheet_of(predict(one, two, **stated), one, two, setup)  # type: ignore[arg-type]  # keywords of predict
    shipped = built.what_if
    assert shipped is not None
    assert shipped.depth == 1000
    assert built.prediction.speedup.median == pytest.approx(whatif.answer(shipped, 1000, 3, 0.643)[1], rel=5e-3)
    for depth in (0, 1000, 8192):
        for rate in (0.0, 0.35, 0.8, 1.0):
            again = predict(one, two, **{**stated, "acceptance": rate, "depth": depth})  # type: ignore[arg-type]
            tokens, speedup = whatif.answer(shipped, depth, 3, rate)
            assert tokens == pytest.approx(again.mean_accepted_length, rel=1e-5)
            assert speedup == pytest.approx(again.speedup.median, rel=1e-5)
            context = next(c for c in shipped.contexts if c.depth == depth)
            assert 1000 / context.step_ms == pytest.approx(again.baseline_tps.median, rel=1e-5)
