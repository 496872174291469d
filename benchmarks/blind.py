"""Blind accuracy: speedups predicted without knowing the acceptance, for authors the acceptance model never saw.

    python benchmarks/blind.py [--write]

Every author is left out in turn (the community table of one author counts as one, whatever the device), the acceptance
model is fitted to the others (``fit_acceptance.py``), and all of the author's rows are predicted from model, machine,
method, draft length and task alone. ``--write`` puts the result between the markers of ``docs/accuracy.md``. Takes
several minutes; needs numpy and scipy.

The constants of the physics come from all training rows, as they do in use: their own cross-validation is reported by
``fit.py``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from fit_acceptance import (
    NGRAM,
    NGRAM_RUNS,
    ROOT,
    Fit,
    Run,
    author_of,
    evidence,
    fit,
    posterior,
    read_models,
    read_runs,
)

from advisor.errors import AdvisorError
from advisor.performance.select import fitted_costs
from advisor.speculation import acceptance
from advisor.speculation.overview import outcome
from advisor.speculation.prediction import Task
from advisor.validation.cases import Skipped, SpeculationCase, rounds_for, speculation_case
from advisor.validation.tables import Row, read_table

START, END = "<!-- blind:start -->", "<!-- blind:end -->"
TASKS: tuple[Task, ...] = get_args(Task)


class Scored(NamedTuple):
    """One row, predicted blind."""

    id: str
    author: str
    group: str
    setup: str
    method: str
    measured: float
    predicted: float
    low: float
    high: float
    probability_faster: float
    acceptance: float | None
    expected: float
    expected_low: float
    expected_high: float

    @property
    def error(self) -> float:
        """|ln(predicted / measured)|."""
        return abs(math.log(self.predicted / self.measured))

    @property
    def covered(self) -> bool:
        return self.low <= self.measured <= self.high


def model_without(author: str, runs: Sequence[Run], families: dict[str, str], full: Fit) -> acceptance.Model:
    """The acceptance model fitted to everybody else."""
    others = [r for r in runs if r.author != author]
    found = full if len(others) == len(runs) else fit(others)
    return acceptance.parse(
        {
            **posterior(found),
            "evidence": evidence(others),
            "ngram": NGRAM,
            "ngram_runs": NGRAM_RUNS,
            "families": families,
        }
    )


def blind(row: Row, case: SpeculationCase, model: acceptance.Model) -> Scored | None:
    """One row predicted without its acceptance; None if it cannot be predicted."""
    task = next((t for t in TASKS if t == case.task), None)
    query = acceptance.query(case.target, case.draft, case.method, task, case.temperature or 0.0)
    guess = acceptance.at_length(acceptance.infer(query, (), model), case.k)
    try:
        found = outcome(rounds_for(case, fitted_costs), guess, case.k, case.p_min)
    except AdvisorError:
        return None
    return Scored(
        id=case.id,
        author=author_of(row.text("source_group")),
        group=row.text("source_group"),
        setup=case.cluster,
        method=case.method,
        measured=case.measured,
        predicted=found.speedup.median,
        low=found.speedup.low,
        high=found.speedup.high,
        probability_faster=found.probability_faster,
        acceptance=case.acceptance if case.p_min == 0 and case.method not in acceptance.NGRAM else None,
        expected=guess.rate.median,
        expected_low=guess.rate.low,
        expected_high=guess.rate.high,
    )


def score_all() -> list[Scored]:
    """All usable rows of the training table, each predicted by a model that never saw its author."""
    data = ROOT / "data"
    families, active = read_models(data / "models.json")
    runs = read_runs(data / "speculation.csv", families, active)
    full = fit(runs)
    models: dict[str, acceptance.Model] = {}
    scored = []
    for row in read_table(data / "speculation.csv").rows:
        if row.text("usable_for") in ("test", "avoid", "context") or row.text("trust") == "low":
            continue
        case = speculation_case(row, blind=True)
        if isinstance(case, Skipped):
            continue
        author = author_of(row.text("source_group"))
        if author not in models:
            print(f"without {author}", file=sys.stderr)
            models[author] = model_without(author, runs, families, full)
        one = blind(row, case, models[author])
        if one is not None:
            scored.append(one)
    return scored


def quantile(values: Iterable[tuple[float, float]], level: float) -> float:
    """Weighted quantile of (value, weight) pairs."""
    ordered = sorted(values)
    total = sum(w for _, w in ordered)
    passed = 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= level * total:
            return value
    return ordered[-1][0]


def summary(name: str, rows: Sequence[Scored]) -> str:
    """One line of the table."""
    size = Counter(r.setup for r in rows)
    groups = Counter(g for g, _ in {(r.group, r.setup) for r in rows})
    by_setup = [1 / size[r.setup] for r in rows]
    by_source = [w / groups[r.group] for r, w in zip(rows, by_setup, strict=True)]
    errors = [r.error for r in rows]
    told = [r for r in rows if r.acceptance is not None]
    far = [r for r in rows if abs(math.log(r.measured)) > math.log(1.03)]

    def share(weights: Sequence[float]) -> str:
        return f"{100 * sum(w for r, w in zip(rows, weights, strict=True) if r.covered) / sum(weights):.0f} %"

    def error(level: float, weights: Sequence[float]) -> str:
        return f"{100 * quantile(zip(errors, weights, strict=True), level):.1f} %"

    right = sum((r.predicted > 1) == (r.measured > 1) for r in far) / len(far) if far else float("nan")
    hit = sum(r.expected_low <= (r.acceptance or 0) <= r.expected_high for r in told)
    cells = [
        name, str(len(rows)), str(len(size)), str(len({r.author for r in rows})),
        error(0.5, [1.0] * len(rows)), error(0.5, by_setup), error(0.9, by_setup),
        share([1.0] * len(rows)), share(by_setup), share(by_source),
        f"{100 * right:.0f} %" if far else "-", f"{100 * hit / len(told):.0f} %" if told else "-",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def reliability(rows: Sequence[Scored]) -> list[str]:
    """Stated probability of "faster" against how often it was."""
    lines = ["| stated chance of faster | rows | mean stated | really faster |", "|---|---|---|---|"]
    for low, high in ((0.0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.95), (0.95, 1.01)):
        inside = [r for r in rows if low <= r.probability_faster < high]
        if inside:
            stated = sum(r.probability_faster for r in inside) / len(inside)
            really = sum(r.measured > 1 for r in inside) / len(inside)
            lines.append(f"| {low:.0%} to {min(high, 1):.0%} | {len(inside)} | {stated:.0%} | {really:.0%} |")
    return lines


def section(rows: Sequence[Scored]) -> str:
    """The Markdown between the markers."""
    drafts = [r for r in rows if not r.method.startswith("ngram")]
    brier = sum((r.probability_faster - (r.measured > 1)) ** 2 for r in drafts) / len(drafts)
    lines = [
        "## Blind: acceptance not known",
        "",
        "Speedups of published runs, predicted from model, machine, method, draft length and task alone. Each author",
        "was left out of the acceptance model that predicts the author's rows (all devices of the community table",
        "together, since they share its prompts). Errors are |ln(predicted / measured)|; the range is the stated 80 %",
        "range. Weighted by setup, each pair on one machine counts once; by source, each group of the table does.",
        "",
        "| method | rows | setups | authors | median | by setup | p90 | in range | by setup | by source | sign | "
        "acceptance in range |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        summary("all", rows),
        summary("all but n-gram", drafts),
        *(summary(m, [r for r in rows if r.method == m]) for m in sorted({r.method for r in rows})),
        "",
        "By author left out:",
        "",
        "| author | rows | setups | authors | median | by setup | p90 | in range | by setup | by source | sign | "
        "acceptance in range |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(summary(a, [r for r in drafts if r.author == a]) for a in sorted({r.author for r in drafts})),
        "",
        f"Is the probability of *faster* right, n-gram rows left out? Brier score {brier:.3f}; always saying the "
        f"overall share would score {_base_rate(drafts):.3f}.",
        "",
        *reliability(drafts),
        "",
        "`python benchmarks/blind.py --write` reproduces this section.",
    ]
    return "\n".join(lines)


def _base_rate(rows: Sequence[Scored]) -> float:
    p = sum(r.measured > 1 for r in rows) / len(rows)
    return p * (1 - p)


def write(text: str, path: Path) -> None:
    """Replace what stands between the markers, or append both."""
    old = path.read_text(encoding="utf-8") if path.is_file() else "# Accuracy\n"
    if START in old and END in old:
        new = old[: old.index(START) + len(START)] + "\n" + text + "\n" + old[old.index(END) :]
    else:
        new = old.rstrip("\n") + f"\n\n{START}\n{text}\n{END}\n"
    path.write_text(new, encoding="utf-8")


def main() -> None:
    """Score and print, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="update docs/accuracy.md")
    args = parser.parse_args()
    text = section(score_all())
    if args.write:
        write(text, ROOT / "docs" / "accuracy.md")
    else:
        print(text)


if __name__ == "__main__":
    main()
