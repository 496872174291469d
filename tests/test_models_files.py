"""Containers: shards, Ollama, caches of other programs, folders, and our own cache of descriptions."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from gguf_files import Tensor, llama, vocabulary, write_gguf

from advisor.errors import InputError, ModelFileError, UnknownModelError
from advisor.models import cache, places
from advisor.models.description import ModelDescription
from advisor.models.files import describe_file, in_folder, read_model, shard_paths
from advisor.models.places import describe_all, model_files
from advisor.models.reference import describe


def write_shards(folder: Path, count: int = 3, name: str = "big model", empty_first: bool = False) -> list[Path]:
    """A set of shards as gguf-split writes it: keys in the first, split.* in all."""
    keys, tensors = llama(layers=4)
    folder.mkdir(parents=True, exist_ok=True)
    filled = count - 1 if empty_first else count
    parts: list[list[Tensor]] = [tensors[i::filled] for i in range(filled)]
    if empty_first:
        parts.insert(0, [])
    paths = []
    for i, part in enumerate(parts):
        split = {"split.no": i, "split.count": count, "split.tensors.count": len(tensors)}
        path = folder / f"{name}-{i + 1:05d}-of-{count:05d}.gguf"
        paths.append(write_gguf(path, {**(({**keys, **vocabulary()}) if i == 0 else {}), **split}, part))
    return paths


def write_model(path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    keys, tensors = llama(**options)
    return write_gguf(path, {**keys, **vocabulary()}, tensors)


# -- shards -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty_first", [False, True])
def test_any_shard_stands_for_the_set(tmp_path: Path, empty_first: bool) -> None:
    paths = write_shards(tmp_path / "mit Leerzeichen", empty_first=empty_first)
    whole = describe_file(write_model(tmp_path / "whole.gguf", layers=4))
    for path in paths:
        model = describe_file(path)
        assert model.layers == whole.layers
        assert set(model.weights) == set(whole.weights)
        assert model.name == "big model"
        assert len(model.files) == 3
        assert model.size_bytes == sum(p.stat().st_size for p in paths)
        assert model.tokenizer == whole.tokenizer
        assert any("3 parts" in note for note in model.notes)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelFileError, match=r"1 of the 3 parts .* missing: big model-00002-of-00003.gguf"):
        describe_file(paths[2])


def test_truncated_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    os.truncate(paths[1], paths[1].stat().st_size - 100)
    with pytest.raises(ModelFileError, match=r"00002-of-00003.gguf: the download is incomplete: 100 of"):
        describe_file(paths[0])


def test_shards_of_different_sets(tmp_path: Path) -> None:
    paths, others = write_shards(tmp_path / "a"), write_shards(tmp_path / "b", count=4)
    os.replace(others[1], paths[1])
    with pytest.raises(ModelFileError, match="not part 2 of 3"):
        describe_file(paths[0])
    paths = write_shards(tmp_path / "c")
    os.replace(paths[0], paths[1])
    with pytest.raises(ModelFileError):
        describe_file(paths[2])


def test_shards_with_too_few_tensors(tmp_path: Path) -> None:
    paths = write_shards(tmp_path)
    keys: dict[str, Any] = {"split.no": 1, "split.count": 3}
    write_gguf(paths[1], keys, [("blk.0.attn_q.weight", (64, 64), "F16")])
    with pytest.raises(ModelFileError, match=r"tensors, but .* are announced|a second time"):
        read_model(paths[0])


def test_shard_under_another_name(tmp_path: Path) -> None:
    path = write_shards(tmp_path)[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match="part 2 of 3, but its name does not tell"):
        describe_file(path)


def test_absurd_shard_counts(tmp_path: Path) -> None:
    path = tmp_path / "x-00001-of-99999.gguf"
    assert shard_paths(path) == [path]
    assert len(shard_paths(tmp_path / "x-00001-of-00007.gguf")) == 7


# -- references ---------------------------------------------------------------------------------------------------


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    write_shards(tmp_path)
    write_model(tmp_path / "mmproj-model-f16.gguf", layers=1)
    write_model(tmp_path / "mtp-model.gguf", layers=1)
    assert describe(str(tmp_path)).name == "big model"
    write_model(tmp_path / "second.gguf")
    with pytest.raises(ModelFileError, match=r"holds 2 models. Choose one: big model-00001"):
        in_folder(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="holds no GGUF model"):
        describe(str(tmp_path / "empty"))


def test_paths_that_do_not_exist(tmp_path: Path) -> None:
    write_model(tmp_path / "Qwen3-8B-Q4_K_M.gguf")
    with pytest.raises(ModelFileError, match=r"Did you mean Qwen3-8B-Q4_K_M.gguf"):
        describe(str(tmp_path / "Qwen3-8B-Q4-K-M.gguf"))
    for wrong in ("./nothing", "/nowhere/x", "~/nothing.bin", "C:\\models\\x.gguf", "model.gguf", "a" * 5000 + ".gguf"):
        with pytest.raises(ModelFileError, match="There is no file"):
            describe(wrong)
    with pytest.raises(InputError, match="No model was named"):
        describe("  ")
    with pytest.raises((UnknownModelError, ModelFileError)):
        describe("zero\0byte")


def test_reference_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model(tmp_path / "Größe 模型.gguf")
    monkeypatch.chdir(tmp_path)
    assert describe("Größe 模型.gguf").reference == "Größe 模型.gguf"
    assert describe(str(path)).reference == str(path)
    assert describe("qwen3-8b:Q8_0").reference == "qwen3-8b:Q8_0"


def test_links_and_files_without_ending(tmp_path: Path) -> None:
    blob = write_model(tmp_path / "blobs" / "sha256-abc")
    link = tmp_path / "snapshots" / "model-Q4_0.gguf"
    link.parent.mkdir()
    link.symlink_to(blob)
    assert describe(str(link)).name == "model-Q4_0"
    assert describe(str(blob)).kind == "model"
    gone = tmp_path / "gone.gguf"
    gone.symlink_to(tmp_path / "nothing")
    with pytest.raises(ModelFileError, match="link to a file that does not exist"):
        describe(str(gone))


# -- Ollama -------------------------------------------------------------------------------------------------------


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(places, "ollama_folders", lambda: [folder])
    blob = "sha256-" + "a1" * 32
    write_model(folder / "blobs" / blob)
    put_manifest(folder, "registry.ollama.ai/library/llama3.2/3b", blob)
    put_manifest(folder, "registry.ollama.ai/someone/tuned/latest", blob)
    return folder


def put_manifest(folder: Path, name: str, blob: str) -> Path:
    path = folder / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "00" * 32},
        {"mediaType": "application/vnd.ollama.image.model", "digest": blob.replace("-", ":")},
    ]
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return path


def test_ollama_names(ollama: Path) -> None:
    model = describe("ollama:llama3.2:3b")
    assert model.name == "llama3.2:3b"
    assert model.files[0].endswith("a1" * 32)
    assert any("Ollama blob" in note for note in model.notes)
    assert describe("ollama:someone/tuned").kind == "model"
    with pytest.raises(UnknownModelError, match=r"Did you mean llama3.2:3b"):
        describe("ollama:llama3.2:1b")
    for wrong in ("ollama:", "ollama:../../x", "ollama:a/b/c/../d", "ollama:x:../y"):
        with pytest.raises(UnknownModelError):
            describe(wrong)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layers": 5}', '{"layers": []}', "[" * 100_000])
def test_damaged_ollama_manifests(ollama: Path, text: str) -> None:
    (ollama / "manifests/registry.ollama.ai/library/llama3.2/3b").write_text(text)
    with pytest.raises(ModelFileError, match="names no model file"):
        describe("ollama:llama3.2:3b")


def test_ollama_manifest_pointing_elsewhere(ollama: Path) -> None:
    put_manifest(ollama, "registry.ollama.ai/library/llama3.2/3b", "../../../etc/passwd")
    with pytest.raises(ModelFileError, match="damaged"):
        describe("ollama:llama3.2:3b")
    put_manifest(ollama, "registry.ollama.ai/library/llama3.2/3b", "sha256-" + "bb" * 32)
    with pytest.raises(ModelFileError, match="is missing"):
        describe("ollama:llama3.2:3b")


# -- places -------------------------------------------------------------------------------------------------------


def test_places_of_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ollama: Path) -> None:
    home = tmp_path / "home"
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setattr(places.sys, "platform", "linux")
    write_model(home / ".lmstudio/models/lmstudio-community/Qwen/Qwen3-8B-Q4_K_M.gguf")
    elsewhere = tmp_path / "elsewhere"
    write_model(elsewhere / "org/repo/other.gguf")
    (home / ".lmstudio/settings.json").write_text(json.dumps({"downloadsFolder": str(elsewhere)}))
    write_model(home / ".cache/llama.cpp/org_repo_model.gguf")
    repository = home / ".cache/huggingface/hub/models--org--my-model"
    blob = write_model(repository / "blobs/0123")
    for revision in ("aaa", "bbb"):
        (repository / "snapshots" / revision).mkdir(parents=True)
        (repository / "snapshots" / revision / "m-Q8_0.gguf").symlink_to(blob)
    (repository / "snapshots/bbb/gone.gguf").symlink_to(repository / "blobs/9999")
    found = model_files()
    assert {(m.origin, m.name) for m in found} == {
        ("LM Studio", "Qwen3-8B-Q4_K_M"), ("LM Studio", "other"), ("llama.cpp", "org_repo_model"),
        ("Hugging Face cache", "org/my-model/m-Q8_0.gguf"), ("Ollama", "llama3.2:3b"),
    }  # fmt: skip
    described = {m.name: d for m, d in describe_all(found)}
    assert isinstance(described["llama3.2:3b"], ModelDescription)
    assert described["llama3.2:3b"].name == "llama3.2:3b"


def test_named_folders(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "deep" / "er")
    write_model(tmp_path / "UPPER.GGUF")
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    (tmp_path / "notes.txt").write_text("no model")
    (tmp_path / "bad.gguf").write_text("<html>")
    found = model_files([tmp_path])
    assert [m.path for m in found] == sorted([tmp_path / "UPPER.GGUF", tmp_path / "bad.gguf", shards[0]])
    outcome = {m.path.name: d for m, d in describe_all(found)}
    assert isinstance(outcome["bad.gguf"], ModelFileError)
    assert isinstance(outcome["UPPER.GGUF"], ModelDescription)
    with pytest.raises(InputError, match="no folder"):
        model_files([tmp_path / "nowhere"])


# -- the cache of descriptions ------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose headers were really read."""
    from advisor.models import files

    seen: list[str] = []
    original = files.read_header

    def counting(path: Path, *args: Any) -> Any:
        seen.append(Path(path).name)
        return original(path, *args)

    monkeypatch.setattr(files, "read_header", counting)
    return seen


def test_second_look_reads_nothing(tmp_path: Path, reads: list[str]) -> None:
    path = write_model(tmp_path / "a.gguf")
    first = describe_file(path)
    assert reads == ["a.gguf"]
    assert describe_file(path) == first
    assert reads == ["a.gguf"]


def test_changed_files_are_read_again(tmp_path: Path, reads: list[str]) -> None:
    path = write_model(tmp_path / "a.gguf")
    before = describe_file(path)
    write_model(path, layers=3)
    assert describe_file(path) != before
    os.utime(path, ns=(1, 1))
    describe_file(path)
    assert len(reads) == 3
    shards = write_shards(tmp_path / "s")
    describe_file(shards[0])
    shards[1].unlink()
    with pytest.raises(ModelFileError, match="missing"):
        describe_file(shards[0])


@pytest.mark.parametrize("damage", [b"", b"{", b"null", b'{"name": "x"}', b"\xff" * 100, b"[" * 50_000])
def test_damaged_entries_are_ignored(tmp_path: Path, reads: list[str], damage: bytes) -> None:
    path = write_model(tmp_path / "a.gguf")
    first = describe_file(path)
    for entry in (cache.folder() / "headers").glob("*.json"):
        entry.write_bytes(damage)
    assert describe_file(path) == first
    assert len(reads) == 2


def test_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("ADVISOR_CACHE", str(blocked))
    assert describe_file(write_model(tmp_path / "a.gguf")).kind == "model"


def test_no_partial_files_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_CACHE", str(tmp_path / "c"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    describe_file(write_model(tmp_path / "a.gguf"))
    assert not list((tmp_path / "c" / "headers").iterdir())


def test_concurrent_use(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / f"m{i}.gguf", layers=1 + i % 3) for i in range(12)]
    expected = {p: len(describe_file(p).layers) for p in paths}
    for entry in (cache.folder() / "headers").glob("*.json"):
        entry.unlink()
    wrong: list[object] = []

    def work() -> None:
        for path in paths:
            if len(describe_file(path).layers) != expected[path]:
                wrong.append(path)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_cache_is_bounded_in_bytes(tmp_path: Path) -> None:
    for i in range(12):
        cache.write(tmp_path / f"{i}.head", bytes(1000), most_bytes=5000)
        os.utime(tmp_path / f"{i}.head", ns=(i, i))
    left = {p.name for p in tmp_path.iterdir()}
    assert len(left) <= 5
    assert "11.head" in left


def test_cache_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LIMIT", 20)
    for i in range(50):
        cache.write(tmp_path / f"{i}.json", b"{}")
    assert len(list(tmp_path.iterdir())) <= 21
