"""A choice in words: why it wins, against what, and what would change it. Every sentence is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

from advisor.advice.recommendation import TaskOutlook
from advisor.advice.weigh import (
    DOWNLOAD_GAIN,
    GAIN,
    SURE,
    TIE,
    Question,
    Trial,
    gain_for_task,
    log_gain,
    probability,
)
from advisor.report.console import format_memory
from advisor.speculation.predict import LEVEL, NGRAM
from advisor.speculation.prediction import Prediction, Task
from advisor.speculation.rounds import gated_rate, round_of
from advisor.text import clean

DEEP = 32768
"""Context at which the answer is asked again [tokens]."""
_HEADS = {"draft-mtp": "MTP", "draft-eagle3": "EAGLE-3", "draft-dflash": "DFlash", "draft-dspark": "DSpark"}


def label_of(trial: Trial) -> str:
    """One line that names an option: method, draft and lengths."""
    c = trial.candidate
    if c is None:
        return "no speculation"
    parts: list[str] = []
    for method in trial.methods:
        if method == "draft-simple" and c.draft is not None:
            parts.append(f"draft {clean(c.draft.name, 60)} {clean(c.draft.quant, 20)}".rstrip())
        elif method in _HEADS:
            parts.append(
                _HEADS[method] + (f" {clean(c.draft.name, 60)}" if c.draft is not None else " inside the file")
            )
        elif c.spec_default and method == "ngram-mod":
            parts.append("ngram-mod (--spec-default)")
        else:
            parts.append(method)
    text = f"{' + '.join(parts)}, k = {trial.draft_max}"
    return f"{text}, p-min {trial.p_min:g}" if trial.p_min else text


def headline(best: Trial, plain: Trial, trials: Sequence[Trial]) -> str:
    """The answer in one sentence."""
    if not best.methods:
        closest = max(trials, key=lambda t: t.speed.median, default=None)
        text = f"Do not speculate: {plain.speed.median:.1f} tok/s is the best to be expected"
        if closest is None:
            return text + "."
        return f"{text}; the closest alternative, {label_of(closest)}, is at {closest.speedup.median:.2f}x."
    text = (
        f"Use {label_of(best)}: {best.speed.median:.1f} tok/s instead of {plain.speed.median:.1f} "
        f"({best.speedup.median:.2f}x, {LEVEL:.0%} range {best.speedup.low:.2f} to {best.speedup.high:.2f})."
    )
    if best.download:
        text += f" It must be downloaded first ({best.download / 1e9:.1f} GB)."
    return text


def why(best: Trial, runner: Trial | None, plain: Trial) -> tuple[str, ...]:
    """Why the winner wins, against the runner-up."""
    lines: list[str] = []
    if plain.memory.fits is False:
        advice = f" {plain.memory.advice[0]}" if plain.memory.advice else ""
        lines.append(f"The target alone does not fit: {format_memory(plain.memory.total)} are needed.{advice}")
    if best.methods:
        lines.append(_round_line(best))
        moved = _moved(best, plain)
        if moved:
            lines.append(moved)
    if runner is None:
        return tuple(lines)
    if not runner.methods:
        lines.append(f"Next best is no speculation at all: {plain.speed.median:.1f} tok/s.")
    elif not best.methods:
        lines.append(f"Best way to speculate: {label_of(runner)}, {runner.speedup.median:.2f}x. {_round_line(runner)}")
        if runner.prediction is not None:
            lines += runner.prediction.reasons[1:3]
        if runner.speedup.median >= GAIN and runner.probability_faster < SURE:
            lines.append(
                f"It may gain, but the chance that it does is only {runner.probability_faster:.0%}: measure it with "
                "`advisor confirm` if you want to know."
            )
    else:
        ahead = runner.speed.median > best.speed.median
        reason = _why_not_first(runner, best) if ahead else _difference(best, runner)
        lines.append(f"Runner-up: {label_of(runner)}, {runner.speedup.median:.2f}x. {reason}")
    return tuple(lines)


def _round_line(trial: Trial) -> str:
    if trial.round is None:
        return ""
    cost = trial.round.cost
    inside = "" if len(trial.methods) == 1 else " of the draft"
    return (
        f"A round{inside} yields {trial.round.tokens:.2f} tokens for {cost.cost:.2f} decode steps "
        f"(draft {cost.draft:.2f}, checking {cost.verify:.2f}, the rest {cost.overhead:.2f})."
    )


def _difference(best: Trial, runner: Trial) -> str:
    """What makes the runner-up slower: the part of its rounds that differs most."""
    a, b = best.round, runner.round
    if a is None or b is None:
        return ""
    if len(best.methods) != len(runner.methods) and best.methods[-1] == runner.methods[-1]:
        if len(best.methods) > 1:
            return "The same draft without the n-gram method in front."
        return "The n-gram method in front adds less than it costs here."
    per = {
        "drafting": b.cost.draft / b.tokens - a.cost.draft / a.tokens,
        "checking": b.cost.verify / b.tokens - a.cost.verify / a.tokens,
        "overhead and rollback": b.cost.overhead / b.tokens - a.cost.overhead / a.tokens,
    }
    part, value = max(per.items(), key=lambda item: item[1])
    rates = ""
    if best.acceptance is not None and runner.acceptance is not None:
        mine, its = best.acceptance.median, runner.acceptance.median
        rates = f" ({its:.0%} of its drafts are accepted, {mine:.0%} of the winner's)"
    if value >= 0.005:
        return f"Per token it spends {value:.2f} decode steps more on {part}{rates}."
    if runner.base < best.base * 0.995:
        return "It costs no more per token, but its memory slows the target down."
    return "Practically the same."


def _why_not_first(runner: Trial, best: Trial) -> str:
    if runner.speedup.median < GAIN or runner.probability_faster < SURE:
        return f"It is not first because its chance to gain at all is only {runner.probability_faster:.0%}."
    if runner.candidate is not None and runner.candidate.unconverted:
        return "It is not first because it is published as safetensors and must be converted or found as GGUF (--hub)."
    if runner.download and not best.download:
        return f"It is not first because it must be downloaded and gains less than {DOWNLOAD_GAIN - 1:.0%} more."
    return f"It is not first because the winner is within {TIE - 1:.0%} of it and needs less."


def _moved(best: Trial, plain: Trial) -> str | None:
    """What the draft's memory costs the target, if anything had to move."""
    loss = 1 - best.base / plain.base
    if best.setup.placement == plain.setup.placement or loss < 0.005:
        return None
    return (
        f"Its memory pushes part of the target off the device, which costs {loss:.0%}; the gain is counted after that."
    )


def changes(
    question: Question, best: Trial, runner: Trial | None, plain: Trial, rest: Sequence[Trial]
) -> tuple[str, ...]:
    """What would change the answer: acceptance, draft length, kind of text, context."""
    drafting = best if best.methods else max(rest, key=lambda t: t.speed.median, default=None)
    if drafting is None or drafting.prediction is None or drafting.acceptance is None:
        return ()
    lines = _acceptance_lines(question, best, runner, drafting)
    lines += _length_lines(drafting.prediction)
    lines += _task_lines(outlook(question, drafting, plain), bool(best.methods))
    deep = _deeper(question, drafting)
    return tuple([*lines, deep] if deep else lines)


def _acceptance_lines(q: Question, best: Trial, runner: Trial | None, drafting: Trial) -> list[str]:
    p, expected = drafting.prediction, drafting.acceptance
    if p is None or expected is None:
        return []
    even = p.break_even_acceptance
    known = f"{expected.median:.0%} is expected ({p.acceptance.kind})"
    if even is None:
        return [f"{label_of(drafting)} would lose at any acceptance: a round costs more than it can yield."]
    if not best.methods:
        return [f"{label_of(drafting)} starts to gain at {even:.0%} acceptance; {known}."]
    lines = [f"Below {even:.0%} acceptance it loses; {known}."] if even > 0.005 else []
    if runner is not None and runner.methods and len(best.methods) == 1:
        crossing = acceptance_for(q, best, runner.speed.median)
        if crossing is not None and max(even, 0.005) < crossing < expected.median:
            lines.append(f"Below {crossing:.0%} acceptance {label_of(runner)} is the better choice.")
    return lines


def acceptance_for(question: Question, trial: Trial, tps: float) -> float | None:
    """Acceptance (accepted / drafted) at which a trial would run at ``tps``; None if it never would."""
    q, c = question, trial.candidate
    if c is None:
        return None
    k, share = trial.draft_max, trial.estimate.draft_share if trial.estimate is not None else 1.0

    def speed(rate: float) -> float:
        one = round_of(
            q.target, c.draft, c.method, trial.setup, k, positions=(rate,) * k, depth=q.depth, p_min=trial.p_min,
            parallel=trial.setup.parallel, hit_rate=share, costs=q.costs,
        )  # fmt: skip
        return trial.base * one.tokens / one.cost.cost

    low, high = 0.0, 1.0
    if speed(high) < tps:
        return None
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if speed(middle) > tps else (middle, high)
    return gated_rate(high, k, trial.p_min)


def _length_lines(p: Prediction) -> list[str]:
    """Which draft lengths are as good, and which lose."""
    if len(p.curve) < 2 or p.method in NGRAM:  # what n-grams may draft is bound to what they match
        return []
    top = max(c.speedup.median for c in p.curve)
    close = [c.draft_max for c in p.curve if c.speedup.median >= top * 0.98]
    losing = [c.draft_max for c in p.curve if c.speedup.median < 1.0]
    text = (
        f"Draft lengths {close[0]} to {close[-1]} are within 2 %" if len(close) > 1 else f"Only k = {close[0]} is best"
    )
    if losing and len(losing) < len(p.curve):
        low, high = [k for k in losing if k < close[0]], [k for k in losing if k > close[-1]]
        bad = [words for words in (f"up to {low[-1]}" if low else "", f"from {high[0]} on" if high else "") if words]
        text += f"; it loses {' and '.join(bad)}" if bad else ""
    return [text + "."]


def outlook(question: Question, trial: Trial | None, plain: Trial) -> tuple[TaskOutlook, ...]:
    """A speculating option at its draft length for every kind of text."""
    rows = []
    for task in get_args(Task):
        speedup = gain_for_task(question, trial, plain, task) if trial is not None else None
        if speedup is not None:
            rows.append(TaskOutlook(task=task, speedup=speedup, probability_faster=probability(speedup)))
    return tuple(rows)


def _task_lines(rows: Sequence[TaskOutlook], speculating: bool) -> list[str]:
    good = [r for r in rows if r.speedup.median >= GAIN and r.probability_faster >= SURE]
    bad = [r for r in rows if r not in good]
    if speculating and bad and good:
        names = ", ".join(f"{r.task} ({r.speedup.median:.2f}x)" for r in sorted(bad, key=lambda r: r.speedup.median))
        return [f"By kind of text it is not worth it for: {names}."]
    if not speculating and good:
        names = ", ".join(f"{r.task} ({r.speedup.median:.2f}x)" for r in sorted(good, key=lambda r: -r.speedup.median))
        return [f"By kind of text it would be worth it for: {names}."]
    return []


def _deeper(question: Question, trial: Trial) -> str | None:
    """Whether a long context turns the answer round."""
    q, c = question, trial.candidate
    limit = q.target.context_length
    if c is None or trial.estimate is None or q.depth >= DEEP or (limit is not None and limit < DEEP):
        return None
    now, then = (
        math.exp(log_gain(q, c, trial.setup, trial.draft_max, trial.estimate, p_min=trial.p_min, depth=d))
        for d in (q.depth, DEEP)
    )
    if (now >= GAIN) == (then >= GAIN) and abs(math.log(then / now)) < math.log(1.15):
        return None
    return f"With {DEEP} tokens in the context it would be {then:.2f}x instead of {now:.2f}x (same acceptance)."
