"""`advisor recommend` and `advisor scan` as users meet them, and the server that --exec starts."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from advice_samples import BPE, head, model, setup
from rich.cells import cell_len
from typer.testing import CliRunner

from advisor.advice.builds import flags_of, methods_of
from advisor.advice.execute import Launched, check_port
from advisor.advice.recommendation import Recommendation, Scan
from advisor.advice.scan import dropdown_note, scan
from advisor.advice.watch import read_counters
from advisor.cli.main import app
from advisor.cli.recommend import with_rpc
from advisor.errors import AdvisorError, CancelledError, EngineError, InputError
from advisor.llamacpp.find import inspect_binary

FAKE = Path(__file__).with_name("fake_llama_server.py")


def advisor(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def fake_server(tmp_path: Path) -> Path:
    """The stand-in as a program of its own."""
    if os.name != "posix":
        pytest.skip("needs an executable script")
    path = tmp_path / "llama-server"
    path.write_text(f"#!{sys.executable}\n" + FAKE.read_text(encoding="utf-8"), encoding="utf-8")
    path.chmod(0o755)
    return path


# ---------------------------------------------------------------------------------------------- recommend


def test_recommend_fits_80_columns_and_says_everything() -> None:
    out = advisor("recommend", "qwen3-32b:Q4_K_M", "-H", "RTX 3090", "--task", "code", "--no-local", "--engine", "auto")
    for words in ("tok/s", "no speculation", "Why", "What would change", "Published rules", "Margin:", "Run it"):
        assert words in out
    command = out[out.index("llama-server -m") :].split("\n\n")[0]
    assert max(cell_len(line) for line in out.replace(command, "").splitlines()) <= 80


def test_recommend_json_is_the_contract_and_nothing_else() -> None:
    out = advisor("recommend", "qwen3-8b:Q8_0", "-H", "RTX 3090", "--no-local", "--no-catalogue", "--json")
    answer = Recommendation.model_validate_json(out)
    assert answer.target.name == "qwen3-8b"
    assert answer.options


def test_entry_for_one_launcher() -> None:
    out = advisor("recommend", "qwen3-8b:Q8_0", "-H", "RTX 3090", "--no-local", "--no-catalogue", "--for", "llama-swap")
    assert "models:" in out
    assert "${PORT}" in out
    with pytest.raises(InputError, match="llama-swap"):
        advisor("recommend", "qwen3-8b:Q8_0", "-H", "RTX 3090", "--no-local", "--for", "emacs")


def test_local_files_and_folders(smollm2: Path, tmp_path: Path) -> None:
    name = tmp_path / "a b\x1b[31m; $(x).gguf"
    shutil.copy(smollm2, name)
    out = advisor("recommend", str(name), "-H", "395", "--no-local", "--no-catalogue", "--drafts", str(tmp_path))
    assert "\x1b[31m" not in out.replace("\x1b[0m", "")
    assert "$'" in out, "the command writes the escape character visibly"


def test_rpc_hosts_are_part_of_the_setup() -> None:
    plain = setup()
    far = with_rpc(plain, ["10.0.0.2:50052=RTX 3090"], "10,0.1")
    host = far.placement.rpc[0]
    assert host.address == "10.0.0.2:50052"
    assert host.bandwidth.value == pytest.approx(1.25)
    assert host.latency.value == pytest.approx(0.1)
    for bad in (["10.0.0.2=RTX 3090"], ["10.0.0.2:99999=RTX 3090"], ["a b:1=RTX 3090"], ["10.0.0.2:1="]):
        with pytest.raises(InputError):
            with_rpc(plain, bad, "1")
    for network in ("fast", "0", "-1,1", "nan", "1,-2"):
        with pytest.raises(InputError, match="--network"):
            with_rpc(plain, ["h:1=RTX 3090"], network)


def test_rpc_in_command_and_prediction() -> None:
    common = ("recommend", "llama-3.3-70b:Q4_K_M", "-H", "RTX 3090", "--no-local", "--no-catalogue", "--json")
    slow = Recommendation.model_validate_json(advisor(*common, "--rpc", "h:50052=RTX 3090", "--network", "0.1,5"))
    fast = Recommendation.model_validate_json(advisor(*common, "--rpc", "h:50052=RTX 3090", "--network", "100,0.01"))
    assert fast.command is not None
    assert fast.command.argv[fast.command.argv.index("--rpc") + 1] == "h:50052"
    assert fast.best.speed.median > slow.best.speed.median * 1.05, "the network is in the prediction"


# ------------------------------------------------------------------------------------------------- --exec


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_what_a_build_can_do_is_read_from_its_help(fake_server: Path) -> None:
    engine = inspect_binary(str(fake_server))
    flags = flags_of(engine)
    assert flags.program == (str(fake_server),)
    assert flags.new_names
    assert flags.spec_default
    assert "draft-eagle3" not in methods_of(engine)
    assert "draft-simple" in methods_of(engine)


def test_exec_runs_the_printed_command_and_watches(
    fake_server: Path, smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import advisor.advice.watch as watching

    record = tmp_path / "args.json"
    monkeypatch.setenv("FAKE_LLAMA_ARGS", str(record))
    real, seen = watching.watch, []

    def few(url: str, expected: Any, **options: Any) -> Any:
        def wait(_: float) -> None:
            if len(seen) == 2:
                raise KeyboardInterrupt
            seen.append(url)

        return real(url, expected, wait=wait, **options)

    monkeypatch.setattr(watching, "watch", few)
    port = free_port()
    result = CliRunner().invoke(
        app,
        ["recommend", str(smollm2), "-H", "395", "--no-local", "--no-catalogue", "--engine", str(fake_server), "--exec",
         "--port", str(port), "--json"],
    )  # fmt: skip
    assert result.exit_code == 0, (result.output, result.exception)
    answer = Recommendation.model_validate_json(result.stdout)
    assert answer.command is not None
    argv = json.loads(record.read_text())
    assert argv == [*answer.command.argv[1:], "--host", "127.0.0.1", "--port", str(port)]
    assert f"http://127.0.0.1:{port}" in result.stderr
    assert "50.0 tok/s" in result.stderr
    assert "Stopped." in result.stderr
    check_port("127.0.0.1", port)  # it is free again: the server is gone


def test_exec_refuses_what_is_not_here(fake_server: Path) -> None:
    arguments = ("recommend", "qwen3-8b:Q8_0", "-H", "395", "--no-local", "--no-catalogue", "--json")
    with pytest.raises(InputError, match="cannot be started"):
        advisor(*arguments, "--engine", str(fake_server), "--exec")


def test_launched_server_answers_and_ends(fake_server: Path) -> None:
    port = free_port()
    said: list[str] = []
    with Launched([str(fake_server), "--port", str(port)], f"http://127.0.0.1:{port}", progress=said.append) as server:
        assert server.alive()
        assert read_counters(server.url).drafted == 100
        with pytest.raises(InputError, match="--port"):
            check_port("127.0.0.1", port)
    assert said == ["loading the model"]
    server.stop()
    assert not server.alive()
    check_port("127.0.0.1", port)


def test_a_server_that_fails_says_why(fake_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LLAMA_FAILS", "1")
    with pytest.raises(EngineError, match="--spec-type"):
        Launched([str(fake_server), "--port", str(free_port())], "http://127.0.0.1:9")
    with pytest.raises(AdvisorError):
        Launched(["/no/such/program"], "http://127.0.0.1:9")


def test_starting_can_be_cancelled(fake_server: Path) -> None:
    with pytest.raises(CancelledError):
        Launched([str(fake_server), "--port", str(free_port())], "http://127.0.0.1:9", cancelled=lambda: True)


# --------------------------------------------------------------------------------------------------- scan


@pytest.fixture
def shelf(smollm2: Path, gemma3: Path, tmp_path: Path) -> Path:
    """A folder with two real models, a page saved as a model, and a lookalike that is none."""
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(smollm2, folder / "small.gguf")
    os.link(gemma3, folder / "gemma.gguf") if gemma3.stat().st_dev == folder.stat().st_dev else shutil.copy(
        gemma3, folder / "gemma.gguf"
    )
    (folder / "page.gguf").write_text("<!DOCTYPE html>")
    return folder


def test_scan_lists_every_target(shelf: Path) -> None:
    found = Scan.model_validate_json(advisor("scan", str(shelf), "-H", "395", "--json"))
    assert [r.target.name for r in found.targets] == ["gemma", "small"], "largest first"
    assert all(r.best.speed.median > 0 and r.found_in == "folder" for r in found.targets)
    assert [x.kind for x in found.excluded if x.name == "page.gguf"] == ["unreadable"]
    out = advisor("scan", str(shelf), "-H", "395")
    assert "2 models" in out
    assert "page.gguf" in out
    assert max(cell_len(line) for line in out.splitlines()) <= 80


def test_scan_of_nothing_and_of_no_folder(tmp_path: Path) -> None:
    assert "No model was found" in advisor("scan", str(tmp_path), "-H", "395")
    with pytest.raises(InputError, match="missing"):
        advisor("scan", str(tmp_path / "missing"), "-H", "395")


def test_scan_warns_of_pairs_that_lose(monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.advice import scan as scanning
    from advisor.advice.disk import Shelf
    from advisor.models.places import FoundModel

    target = model("lean-moe", 60e9, layers=36, experts=(128, 4), vocabulary=20000, width=2880)
    draft = model("dense-6b", 6e9, layers=36, width=2560, vocabulary=20000)
    found = [(FoundModel(Path(m.reference), "folder", m.name), m) for m in (target, draft)]
    monkeypatch.setattr(scanning, "models_on_disk", lambda *_, **__: Shelf(found, []))
    answer = scan([], setup=setup(bandwidth=256, memory=128))
    row = next(r for r in answer.targets if r.target.name == "lean-moe")
    assert [o.draft.name for o in row.losing if o.draft] == ["dense-6b"]
    assert row.losing[0].speedup.median < 1
    with pytest.raises(CancelledError):
        scan([], setup=setup(), cancelled=lambda: True)


TARGET = model("target", 30e9, architecture="qwen35moe", experts=(64, 4))
DRAFT = model("draft", 0.8e9, width=1024, architecture="qwen35")


@pytest.mark.parametrize(
    ("draft", "works", "inside", "projector", "words"),
    [
        (DRAFT, True, True, False, "compares architectures"),
        (DRAFT, True, False, False, "outside LM Studio's folder"),
        (model("twin", 0.8e9, width=1024, architecture="qwen35moe"), True, True, True, "mmproj"),
        (model("twin", 0.8e9, width=1024, architecture="qwen35moe"), True, True, False, None),
        (head(TARGET), True, True, False, "no separate heads"),
        (model("other", 0.8e9, width=1024, tokenizer=BPE.model_copy(update={"digest": "x"})), False, True, False, None),
    ],
)
def test_what_lm_studios_list_hides(draft: Any, works: bool, inside: bool, projector: bool, words: str | None) -> None:
    note = dropdown_note(TARGET, draft, works, in_lm_studio=inside, projector=projector)
    if words is None:
        assert note is None
    else:
        assert note is not None
        assert words in note.reason
        assert note.source
        assert note.offered is False


def test_what_lm_studios_list_offers_wrongly() -> None:
    hybrid = model("hybrid", 30e9, architecture="qwen3next", state=1000)
    note = dropdown_note(hybrid, DRAFT, False, in_lm_studio=True, projector=False)
    assert note is not None
    assert note.offered
    assert note.works is False
