"""The HTML report in a real browser: it shows, it computes, it obeys, it stays quiet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import browser
import gguf_files
import pytest
from report_samples import HOSTILE, curves, hostile_sheet, prediction, sheet

from advisor.cli.main import app
from advisor.report import html, whatif
from advisor.report.document import WhatIf

pytestmark = pytest.mark.skipif(browser.find() is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    binary = browser.find()
    assert binary is not None
    with browser.Browser(binary) as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    return html.write_html(path, [sheet(), sheet(prediction=prediction(hardware="RTX 3090", draft_max=4))])


@pytest.fixture
def page(chromium: browser.Browser, report: Path) -> Iterator[browser.Page]:
    opened = chromium.open(report)
    yield opened
    opened.close()


def move(page: browser.Page, number: int, **values: float) -> dict[str, float]:
    """Set inputs of one what-if and read its answer."""
    answer = page.evaluate(
        f"""(() => {{
            const form = document.querySelectorAll("form.whatif")[{number}];
            for (const [name, value] of Object.entries({json.dumps(values)})) {{
                const input = form.querySelector(`[name=${{name}}]`);
                input.value = value;
                input.dispatchEvent(new Event("input", {{bubbles: true}}));
            }}
            const output = form.querySelector("output");
            const rows = [...form.querySelectorAll("tbody tr")].map((row) => row.cells[1].textContent);
            return {{...output.dataset, text: output.textContent, rows}};
        }})()"""
    )
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_page_shows_without_a_complaint_or_a_request(
    chromium: browser.Browser, report: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    page = chromium.open(report, width=width, scheme=scheme)
    assert page.complaints() == []
    assert page.requests() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('.verdict strong').textContent") == "Faster"
    shown = page.evaluate("document.body.innerText")
    for needle in ("Side by side", "RTX 3090", "1.58x", "Roofline", "What if?", "Run it:"):
        assert needle in shown
    # Every chart is drawn where it can be seen, at a size that keeps its letters legible.
    widths = page.evaluate("[...document.querySelectorAll('figure svg')].map((s) => s.getBoundingClientRect().width)")
    assert len(widths) == 11
    assert min(widths) > 280
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('figure svg text')].filter((t) => t.textContent)"
        ".map((t) => t.getBoundingClientRect().height))"
    )
    assert smallest >= 9
    assert page.screenshot(tmp_path / "page.png").stat().st_size > 20_000
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(chromium: browser.Browser, report: Path, scheme: str) -> None:
    page = chromium.open(report, scheme=scheme)
    ratios = page.evaluate(
        """(() => {
            const style = getComputedStyle(document.documentElement);
            const light = (name) => {
                const hex = style.getPropertyValue(name).trim();
                const channel = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
                    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
                return 0.2126 * channel[0] + 0.7152 * channel[1] + 0.0722 * channel[2];
            };
            const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
            const out = {};
            for (const ground of ["--page", "--card"])
                for (const ink of ["--text", "--muted", "--with", "--good", "--bad", "--unsure"])
                    out[ink + " on " + ground] = ratio(ink, ground);
            return out;
        })()"""
    )
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}  # WCAG 2.2, level AA
    page.close()


def test_what_if_computes_what_the_library_does(page: browser.Page) -> None:
    shipped = curves()
    for acceptance in (0, 5, 37, 64, 100):
        for k in (1, 3, 8):
            for place, context in enumerate(shipped.contexts):
                shown = move(page, 0, acceptance=acceptance, length=shipped.lengths.index(k), context=place)
                tokens, speedup = whatif.answer(shipped, context.depth, k, acceptance / 100)
                assert float(shown["tokens"]) == pytest.approx(tokens, rel=1e-9)
                assert float(shown["speedup"]) == pytest.approx(speedup, rel=1e-9)


def test_what_if_starts_at_the_prediction_itself(chromium: browser.Browser, tmp_path: Path) -> None:
    shipped = curves(rate=0.643)
    page = chromium.open(html.write_html(tmp_path / "r.html", [sheet(what_if=shipped)]))
    shown = page.evaluate("document.querySelector('output').dataset.speedup")
    assert float(shown) == pytest.approx(whatif.answer(shipped, 2048, 3, 0.643)[1], rel=1e-9)
    page.close()


def test_what_if_with_rollback_and_missed_rounds(chromium: browser.Browser, tmp_path: Path) -> None:
    lengths, rates = (1, 2, 4), tuple(i / 20 for i in range(21))
    shipped: WhatIf = curves(
        lengths=lengths,
        draft_share=0.4,
        offsets=(),
        yields=tuple(tuple(1 + k * r * r for r in rates) for k in lengths),
        contexts=tuple(
            c.model_copy(update={"cost": tuple(tuple(1 + k * (0.5 - 0.2 * r) for r in rates) for k in lengths)})
            for c in curves().contexts
        ),
    )
    page = chromium.open(html.write_html(tmp_path / "r.html", [sheet(what_if=shipped)]))
    for acceptance in (0, 33, 90):
        shown = move(page, 0, acceptance=acceptance, length=2, context=1)
        tokens, speedup = whatif.answer(shipped, 2048, 4, acceptance / 100)
        assert float(shown["tokens"]) == pytest.approx(tokens, rel=1e-9)
        assert float(shown["speedup"]) == pytest.approx(speedup, rel=1e-9)
    page.close()


def test_what_ifs_of_two_sheets_do_not_touch_each_other(page: browser.Page) -> None:
    before = move(page, 1)
    move(page, 0, acceptance=5)
    assert move(page, 1) == before
    assert "slower" in str(move(page, 0, acceptance=0)["text"])
    assert "faster" in str(move(page, 0, acceptance=100, length=2, context=0)["text"])


def test_everything_can_be_reached_and_moved_with_the_keyboard(page: browser.Page) -> None:
    page.evaluate("document.querySelector('[name=acceptance]').focus()")
    before = page.evaluate("document.querySelector('[name=acceptance]').value")
    for kind in ("rawKeyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39)
    assert int(page.evaluate("document.querySelector('[name=acceptance]').value")) == int(before) + 1
    reached = set()
    page.evaluate("document.activeElement.blur()")
    for _ in range(60):
        for kind in ("rawKeyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.add(page.evaluate("document.activeElement.name || document.activeElement.tagName"))
    assert {"acceptance", "length", "context", "SUMMARY", "PRE", "A"} <= reached


def test_a_screen_reader_hears_names_not_graphics(page: browser.Page) -> None:
    names = page.names()
    images = [name for role, name in names if role in ("image", "img", "graphics-document")]
    assert len(images) == 11
    assert all(images)
    sliders = [name for role, name in names if role == "slider"]
    assert any("Acceptance" in name for name in sliders)
    assert any("Draft length" in name for name in sliders)
    assert next(name for role, name in names if role in ("combobox", "ComboBoxMenuButton", "MenuListPopup"))
    assert all(name for role, name in names if role in ("slider", "button", "link", "heading", "region", "form"))


def test_hostile_names_do_nothing(chromium: browser.Browser, tmp_path: Path) -> None:
    page = chromium.open(html.write_html(tmp_path / "hostile.html", [hostile_sheet(), hostile_sheet()], HOSTILE))
    assert page.complaints() == []
    assert page.requests() == []
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelectorAll('body script:not([type])').length") == 1
    assert "</script><script>" in page.evaluate("document.querySelector('h1').textContent")
    assert page.evaluate("document.title").startswith("</script>")
    assert move(page, 1, acceptance=50)["text"]
    page.close()


def test_print_keeps_the_content_and_drops_the_controls(page: browser.Page) -> None:
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.whatif')).display") == "none"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") in ("rgb(255, 255, 255)",)
    data = page.pdf()
    assert data.startswith(b"%PDF")
    assert page.evaluate("[...document.querySelectorAll('details')].every((d) => d.open)") is True


def test_without_script_the_answer_is_still_there(chromium: browser.Browser, report: Path) -> None:
    page = chromium.open(report)
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.reload")
    chromium.wait_for("Page.loadEventFired", page.session)
    shown = " ".join(name for _, name in page.names())
    assert "1.58x" in shown
    assert "What if?" not in shown
    page.close()


def test_hostile_file_from_the_command_line_to_the_browser(
    chromium: browser.Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real file with a hostile name inside and outside, described, predicted, printed and shown."""
    folder = tmp_path / "a;b $(touch pwned) <img src=x onerror=alert(1)>"
    folder.mkdir()
    keys, tensors = gguf_files.llama()
    keys |= {"general.name": HOSTILE, "general.architecture": "llama"}
    path = gguf_files.write_gguf(folder / "x'<script>window.pwned=1<\u202e\"`.gguf", keys, tensors)
    page_path = tmp_path / "page.html"
    command = ["predict", str(path), "--method", "ngram-simple", "--hardware", "RTX 3090", "--html", str(page_path)]
    app(command, prog_name="advisor", standalone_mode=False)
    printed = capsys.readouterr().out
    assert not [c for c in printed if c != "\n" and (ord(c) < 32 or c in "\x7f\u202e")]
    page = chromium.open(page_path)
    assert page.complaints() == []
    assert page.requests() == []
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert "window.pwned=1" in page.evaluate("document.querySelector('h1').textContent")
    commands = page.evaluate("[...document.querySelectorAll('pre')].map((p) => p.textContent)")
    assert len(commands) == 3
    echo = """() { printf '%s\\0' "$@"; }"""
    for text in commands:
        script = f"llama-server{echo}; advisor{echo}; {text}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, cwd=tmp_path)
        assert str(path).encode() in done.stdout.split(b"\0")
    assert not (tmp_path / "pwned").exists()
    page.close()
