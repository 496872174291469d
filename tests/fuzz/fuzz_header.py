"""Coverage-guided fuzzing of everything that reads somebody else's bytes (not run by pytest).

    pip install atheris
    python tests/fuzz/fuzz_header.py [gguf|config|manifest] -max_total_time=300

No input may raise anything but the package's own errors, hang, or take more memory than the limit
(libFuzzer's ``-rss_limit_mb`` and ``-timeout`` apply).
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT.parent)]

with atheris.instrument_imports(include=["advisor.models"]):
    from advisor.errors import AdvisorError
    from advisor.models import files, hfconfig
    from advisor.models.describe import describe_header
    from advisor.models.gguf import parse
    from advisor.models.inspection import inspect_report

from gguf_files import header_bytes, llama, vocabulary  # noqa: E402 - beside this folder, found by the line above


class Bytes:
    """A source over bytes, as large as its first byte says: up to some gigabytes more than there are."""

    block = 4096

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data) + ((data[0] & 3) << 30 if data else 0)

    def read(self, start: int, count: int) -> bytes:
        return self.data[start : start + count].ljust(min(count, max(0, self.size - start)), b"\0")


def gguf(data: bytes) -> None:
    with suppress(AdvisorError):
        described = describe_header(parse(Bytes(data), "fuzz.gguf"))
        inspect_report(described, layers=True).model_dump_json()
        described.kv_bytes(4096)


def config(data: bytes) -> None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        with suppress(AdvisorError):
            hfconfig.describe_repository("org/repo", found, None, None, "org/repo")


FOLDER = Path(tempfile.mkdtemp(prefix="advisor-fuzz-"))


def manifest(data: bytes) -> None:
    path = FOLDER / "manifest"
    path.write_bytes(data)
    with suppress(AdvisorError):
        files._blob_of(path, FOLDER)


def seeds(folder: Path) -> None:
    """A few good inputs to start from."""
    for number, arch in enumerate(("llama", "gemma3", "qwen35", "deepseek2", "lfm2", "eagle3")):
        keys, tensors = llama(layers=1, vocab=8, arch=arch)
        for order in "<>":
            head, size = header_bytes({**keys, **vocabulary(8)}, tensors[:6], order=order)
            (folder / f"{number}{ord(order)}").write_bytes(head + bytes(min(size, 64)))
    shape = {"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
             "vocab_size": 9, "intermediate_size": 8, "layer_types": ["full_attention"]}  # fmt: skip
    (folder / "config").write_text(json.dumps({"text_config": shape}))


def main() -> None:
    targets = {"gguf": gguf, "config": config, "manifest": manifest}
    name = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1] in targets else "gguf"
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    seeds(corpus)
    atheris.Setup([*sys.argv, str(corpus)], targets[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
