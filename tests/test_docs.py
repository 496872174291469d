"""Documentation cannot drift, and all commands speak the same language."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from scripts import load

from advisor.cli.completion import mend_bash_words
from advisor.cli.main import COMMANDS, app

ROOT = Path(__file__).resolve().parent.parent
THERE = [name for name in COMMANDS if importlib.util.find_spec(f"advisor.cli.{name}")]
"""Commands that have a module; the tests below walk these, and the first one says that it is all of them."""


generate = load("docs/generate.py")
PAGES: list[Path] = generate.pages()
BLOCKS = generate.blocks()


def test_every_promised_command_is_there() -> None:
    assert tuple(THERE) == COMMANDS


# ---------------------------------------------------------------- generated blocks


def words_of_help(text: str) -> list[str]:
    """Help without what other versions of typer write differently: metavars, ranges, wrapping."""
    text = re.sub(r"<[^>\n]*>|\[(?:default|required|x)[^\]]*\]|\b[A-Z]{3,}\b|[\[\]{}|.…]", " ", text)
    return [word for word in text.split() if word.lower() not in ("target", "draft", "drafts")]


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{b.path.name}: {b.source}" for b in BLOCKS])
def test_generated_block_is_what_the_command_prints(block: Any) -> None:
    fresh = generate.body_of(block.source)
    if block.source.endswith("--help"):
        assert words_of_help(block.body) == words_of_help(fresh), "run `make docs`"
    else:
        assert block.body == fresh, "run `make docs`"


def test_blocks_are_closed_and_never_nested() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        marks = re.findall(r"<!-- (generated|end)\b", text)
        assert marks == ["generated", "end"] * (len(marks) // 2), path.name


def test_every_command_is_documented() -> None:
    sources = {b.source for b in BLOCKS}
    assert {f"advisor {name} --help" for name in (*COMMANDS, *(name for name, _ in LEAVES))} <= sources


def test_picture_shows_the_present_predictions() -> None:
    drawn = generate.PICTURE.read_text(encoding="utf-8")
    assert generate.picture_label(drawn), "the picture has lost its description"
    pytest.importorskip("vl_convert")
    assert generate.picture_label(drawn) == generate.picture_label(generate.picture()), "run `make docs`"


def test_only_commands_and_known_tables_are_generated() -> None:
    with pytest.raises(ValueError, match="cannot generate"):
        generate.body_of("rm -rf /")


# ---------------------------------------------------------------- prose


def anchors(text: str) -> set[str]:
    """GitHub's anchors of the headings of a page."""
    found = re.findall(r"^#{1,6} (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in found}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        assert place.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(place.read_text(encoding="utf-8")), f"{path.name} links to {target}"


PRIVATE = re.compile(r"(?<![\w.])/(?:work|root|tmp|home)/|/Users/|file://")


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_no_page_shows_somebodys_machine(path: Path) -> None:
    assert not PRIVATE.findall(path.read_text(encoding="utf-8"))


def shown_commands() -> Iterator[tuple[str, str]]:
    """Every ``advisor ...`` line in code blocks and in backticks of the pages."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for fence in re.findall(r"```(?:sh|console|bash|text)\n(.*?)```", text, re.DOTALL):
            for line in fence.splitlines():
                match = re.match(r"\s*(?:\$ )?(advisor [^#|>]*)", line)
                if match and "<TAB>" not in line and "Usage:" not in line:
                    yield path.name, match[1].strip()
        for line in re.findall(r"`(advisor [^`\n]+)`", text):
            yield path.name, line


@pytest.mark.parametrize(("page", "line"), sorted(set(shown_commands())))
def test_shown_commands_parse(page: str, line: str) -> None:
    words = [w for w in shlex.split(line.replace("...", "")) if w]
    if words[1:2] and words[1].startswith("--"):
        assert words[1] in ("--help", "--version", "--install-completion", "--show-completion")
        return
    assert words[1] in COMMANDS, f"{page}: {line}"
    command = command_of(words[1])
    while words[2:] and hasattr(command, "commands") and words[2] in command.commands:
        command, words = command.commands[words[2]], [words[0], *words[2:]]
    whole = [command, *(command.commands.values() if "..." in line and hasattr(command, "commands") else ())]
    options = {
        name for one in whole for parameter in one.params for name in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in words[2:]:
        if word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            assert word.split("=")[0] in options | {"--help", "-h"}, f"{page}: {line}"


# ---------------------------------------------------------------- all commands


def command_of(name: str) -> Any:
    root = typer.main.get_command(app)
    return root.get_command(None, name)  # type: ignore[attr-defined, arg-type]  # a group; no context needed


def leaves() -> list[tuple[str, Any]]:
    """Every command that can be run, subcommands included."""
    found: list[tuple[str, Any]] = []

    def walk(name: str, command: Any) -> None:
        if hasattr(command, "commands"):
            for sub, inner in command.commands.items():
                walk(f"{name} {sub}", inner)
            if not getattr(command, "invoke_without_command", False):
                return
        found.append((name, command))

    for name in THERE:
        walk(name, command_of(name))
    return found


LEAVES = leaves()
SPELLINGS = {
    # option: (short forms it may have, whether it is a flag)
    "--json": ((), True),
    "--html": ((), False),
    "--hardware": (("-H",), False),
    "--backend": (("-b",), False),
    "--bandwidth": ((), False),
    "--memory": ((), False),
    "--method": (("-m",), False),
    "--task": (("-t",), False),
    "--draft-max": (("-k",), False),
    "--acceptance": (("-a",), False),
    "--context": (("-c",), False),
    "--parallel": (("-np",), False),
    "--gpu-layers": (("-ngl",), False),
    "--output": (("-o",), False),
    "--engine": (("-e",), False),
    "--offline": ((), True),
    "--force": ((), True),
}


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[n for n, _ in LEAVES])
def test_command_explains_itself(name: str, command: Any) -> None:
    assert command.help, f"{name} has no description"
    for parameter in command.params:
        if parameter.name == "help":
            continue
        assert parameter.help, f"{name}: {parameter.opts} has no help text"
        assert parameter.help.rstrip().endswith((".", "...", ")", "?")), f"{name}: {parameter.help!r}"


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[n for n, _ in LEAVES])
def test_command_offers_json(name: str, command: Any) -> None:
    options = {opt for parameter in command.params for opt in parameter.opts}
    assert "--json" in options


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[n for n, _ in LEAVES])
def test_shared_options_are_spelt_alike(name: str, command: Any) -> None:
    taken: dict[str, str] = {}
    for parameter in command.params:
        longs = [o for o in parameter.opts if o.startswith("--")]
        shorts = [o for o in parameter.opts if not o.startswith("--") and o.startswith("-")]
        for long in longs:
            assert long == long.lower()
            assert "_" not in long
            if long in SPELLINGS:
                expected, flag = SPELLINGS[long]
                assert set(shorts) <= set(expected), f"{name} {long}: {shorts}"
                assert parameter.is_flag == flag, f"{name} {long}"
        for short in shorts:
            meant = next((long for long, (s, _) in SPELLINGS.items() if short in s), None)
            assert meant is None or meant in longs, f"{name}: {short} means {longs}, elsewhere {meant}"
            assert short not in taken, f"{name}: {short} twice"
            taken[short] = short


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[n for n, _ in LEAVES])
def test_example_lines_are_not_wrapped(name: str, command: Any) -> None:
    shown = generate.run([*name.split(), "--help"])
    for line in (command.help or "").replace("\b", "").splitlines():
        if line.strip().startswith("advisor "):
            assert line.strip() in [x.strip() for x in shown.splitlines()], f"{name}: begin the examples with \\b"


@pytest.mark.parametrize("name", THERE)
def test_wrong_options_end_with_two(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app([name, "--no-such-option"], prog_name="advisor")
    assert end.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "--no-such-option" in output.err


def test_asking_for_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from advisor.cli.main import COMMANDS, app\n"
        "heavy = {'numpy', 'scipy', 'huggingface_hub', 'httpx', 'gguf', 'altair', 'vl_convert', 'pandas', 'jinja2'}\n"
        "for name in COMMANDS:\n"
        "    try: app([name, '--help'])\n"
        "    except SystemExit: pass\n"
        "    found = heavy & set(sys.modules)\n"
        "    if found: sys.exit(f'{name} imports {sorted(found)}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- completion


def completions(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash would be offered after ``words`` (the last one is being typed)."""
    parts = words.split(" ")
    monkeypatch.setenv("_ADVISOR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(parts) - 1))
    with pytest.raises(SystemExit):
        app([], prog_name="advisor")
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("advisor pre", "predict"),
        ("advisor predict qwen3.5-2", "qwen3.5-27b"),
        ("advisor predict qwen3.5-27b qwen3.5-0", "qwen3.5-0.8b"),
        ("advisor predict x --hardware rtx-309", "rtx-3090"),
        ("advisor report x y --hardware rtx-409", "rtx-4090"),
        ("advisor predict x --hard", "--hardware"),
        ("advisor check gpt-oss-120b gpt-oss-2", "gpt-oss-20b"),
        ("advisor hardware show rtx-309", "rtx-3090"),
    ],
)
def test_shell_completion(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in completions(words, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "place", "mended", "moved"),
    [
        (["advisor", "predict", "a", ":", "Q8_0", "b"], 5, ["advisor", "predict", "a:Q8_0", "b"], 3),
        (["advisor", "predict", "a", ":", "Q8"], 4, ["advisor", "predict", "a:Q8"], 2),
        (["advisor", "predict", "a", ":"], 3, ["advisor", "predict", "a:"], 2),
        (["advisor", "predict", "a", "", "x", ":", "y"], 3, ["advisor", "predict", "a", "", "x:y"], 3),
        (["advisor", "predict", "a"], 2, ["advisor", "predict", "a"], 2),
    ],
)
def test_bash_words_are_mended(words: list[str], place: int, mended: list[str], moved: int) -> None:
    environment = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(place)}
    mend_bash_words(environment)
    assert environment == {"COMP_WORDS": "\n".join(mended), "COMP_CWORD": str(moved)}


def test_completion_in_a_real_bash() -> None:
    """Bash itself splits the line, calls the program and fills COMPREPLY."""
    program = Path(sys.executable).with_name("advisor")
    if not program.exists():
        pytest.skip("the advisor script is not installed")
    script = f"""
eval "$({shlex.quote(str(program))} --show-completion bash)"
COMP_WORDS=(advisor predict qwen3.5-27b : Q8_0 qwen3.5-0); COMP_CWORD=5
_advisor_completion {shlex.quote(str(program))}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "qwen3.5-0.8b" in done.stdout.split()
