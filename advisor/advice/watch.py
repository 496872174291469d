"""Watching a running llama-server: does reality stay inside the predicted range?

The server's own counters are read (``/metrics``, ``/slots``); nothing is sent to the model. Counters only grow, so the
difference of two readings is what happened between them. llama.cpp adds a request to them when it is finished.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from typing import Any, Literal

from advisor.advice.recommendation import Expectation
from advisor.base import Frozen
from advisor.errors import CancelledError, EngineError

MIN_TOKENS = 48
"""Fewer predicted tokens say nothing about speed."""
MIN_ROUNDS = 16
"""Fewer rounds say nothing about acceptance."""
SLACK = 1.05
"""Relative slack beyond the predicted range before it is called left: counters include the first token of a reply."""

Kind = Literal["not active", "nothing drafted", "slower", "faster", "acceptance low", "acceptance high", "as predicted"]


class Counters(Frozen):
    """One reading of the server's counters; None where this build has no such counter."""

    predicted_tokens: float = 0.0
    predicted_seconds: float = 0.0
    drafted: float | None = None
    accepted: float | None = None
    rounds: float | None = None
    speculative: bool | None = None
    """``/slots``: whether speculation was really set up."""


class Observation(Frozen):
    """What a server did in some stretch of time."""

    tokens: float
    seconds: float
    """Time spent generating [s]."""
    drafted: float | None
    accepted: float | None
    rounds: float | None
    speculative: bool | None

    @property
    def tps(self) -> float | None:
        """Tokens per second, None before anything was generated."""
        return self.tokens / self.seconds if self.seconds > 0 and self.tokens > 0 else None

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted, None if nothing was drafted or the build does not count it."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens per round, the target's own included."""
        return 1 + self.accepted / self.rounds if self.rounds and self.accepted is not None else None


class Finding(Frozen):
    """One comparison of reality and prediction, in a sentence."""

    kind: Kind
    message: str


_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+([-+0-9.eE]+|NaN|[-+]?Inf)\s*\Z")


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text to values by name without the ``llamacpp:`` prefix; labelled series of one name are added up."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match.group(2))
        except ValueError:
            continue
        if math.isfinite(value):
            name = match.group(1).split(":", 1)[-1]
            values[name] = values.get(name, 0.0) + value
    return values


def counters_of(metrics: str, slots: Any = None) -> Counters:
    """Counters from the body of ``/metrics`` and the parsed body of ``/slots`` (None = not available)."""
    values = parse_metrics(metrics)
    speculative: bool | None = None
    if isinstance(slots, list):
        states = [s.get("speculative") for s in slots if isinstance(s, dict)]
        known = [s for s in states if isinstance(s, bool)]
        speculative = any(known) if known else None
    return Counters(
        predicted_tokens=values.get("tokens_predicted_total", 0.0),
        predicted_seconds=values.get("tokens_predicted_seconds_total", 0.0),
        drafted=values.get("spec_decode_num_draft_tokens_total"),
        accepted=values.get("spec_decode_num_accepted_tokens_total"),
        rounds=values.get("spec_decode_num_drafts_total"),
        speculative=speculative,
    )


def between(before: Counters, after: Counters) -> Observation:
    """What happened from one reading to the next; a restarted server (counters fell) counts from zero."""

    def grown(a: float | None, b: float | None) -> float | None:
        if b is None:
            return None
        return b - a if a is not None and b >= a else b

    restarted = after.predicted_tokens < before.predicted_tokens
    start = Counters() if restarted else before
    return Observation(
        tokens=grown(start.predicted_tokens, after.predicted_tokens) or 0.0,
        seconds=grown(start.predicted_seconds, after.predicted_seconds) or 0.0,
        drafted=grown(start.drafted, after.drafted),
        accepted=grown(start.accepted, after.accepted),
        rounds=grown(start.rounds, after.rounds),
        speculative=after.speculative,
    )


def judge(seen: Observation, expected: Expectation) -> tuple[Finding, ...]:
    """Where reality left the predicted range; empty while there is too little to say.

    The acceptance range is widened by the sampling error of the tokens seen (a binomial over drafted tokens, taken
    as independent: two standard deviations).
    """
    findings: list[Finding] = []
    if expected.speculates and seen.speculative is False:
        findings.append(
            Finding(
                kind="not active",
                message="Speculation is NOT active: the server refused or ignored the draft; its log says why.",
            )
        )
    if seen.tokens < MIN_TOKENS or seen.tps is None:
        return tuple(findings)
    if expected.speculates and seen.drafted == 0:
        findings.append(
            Finding(
                kind="nothing drafted",
                message=f"Nothing was drafted in {seen.tokens:.0f} tokens: this run says nothing about speculation.",
            )
        )
        return tuple(findings)
    findings += _acceptance(seen, expected)
    ends = f"{expected.speed.low:.1f} to {expected.speed.high:.1f}"
    if seen.tps * SLACK < expected.speed.low:
        findings.append(
            Finding(
                kind="slower",
                message=f"{seen.tps:.1f} tok/s is below the predicted {ends}{_cause(findings, expected)}.",
            )
        )
    elif seen.tps > expected.speed.high * SLACK:
        findings.append(Finding(kind="faster", message=f"{seen.tps:.1f} tok/s is above the predicted {ends}."))
    elif not findings:
        findings.append(Finding(kind="as predicted", message=f"{seen.tps:.1f} tok/s, predicted {ends}."))
    return tuple(findings)


def _acceptance(seen: Observation, expected: Expectation) -> list[Finding]:
    rate, interval = seen.acceptance, expected.acceptance
    if rate is None or interval is None or not seen.drafted or (seen.rounds is not None and seen.rounds < MIN_ROUNDS):
        return []
    error = 2 * math.sqrt(max(rate * (1 - rate), 0.25 / seen.drafted) / seen.drafted)
    ends = f"{interval.low:.0%} to {interval.high:.0%}"
    even = expected.break_even_acceptance
    if rate + error < interval.low:
        loss = f" Below {even:.0%} it costs speed." if even is not None else ""
        return [Finding(kind="acceptance low", message=f"Acceptance {rate:.0%} is below the expected {ends}.{loss}")]
    if rate - error > interval.high:
        return [Finding(kind="acceptance high", message=f"Acceptance {rate:.0%} is above the expected {ends}.")]
    return []


def _cause(findings: list[Finding], expected: Expectation) -> str:
    if not expected.speculates:
        return ""
    if any(f.kind == "acceptance low" for f in findings):
        return "; the text is accepted less often than expected"
    if any(f.kind == "acceptance high" for f in findings):
        return " although acceptance is high: rounds cost more than predicted, so calibrate this machine"
    return " at the expected acceptance: rounds cost more than predicted, so calibrate this machine"


def read_counters(url: str, timeout: float = 5.0) -> Counters:
    """Read a server's counters.

    Raises:
        EngineError: the server does not answer, or was started without ``--metrics``.
    """
    import httpx

    base = url.rstrip("/")
    try:
        with httpx.Client(timeout=timeout, trust_env=False) as client:
            metrics = client.get(base + "/metrics")
            if metrics.status_code in (404, 501):
                raise EngineError("The server does not show its counters.", "Start it with --metrics.")
            metrics.raise_for_status()
            slots: Any = None
            answer = client.get(base + "/slots")
            if answer.status_code == 200:
                try:
                    slots = answer.json()
                except (json.JSONDecodeError, UnicodeDecodeError):
                    slots = None
            return counters_of(metrics.text, slots)
    except httpx.HTTPError as error:
        raise EngineError(f"The server at {base} does not answer: {type(error).__name__}.") from error


def watch(
    url: str,
    expected: Expectation,
    *,
    interval: float = 5.0,
    stop: Callable[[], bool] | None = None,
    report: Callable[[Observation, tuple[Finding, ...]], None] | None = None,
    read: Callable[[str], Counters] = read_counters,
    wait: Callable[[float], None] = time.sleep,
    alive: Callable[[], bool] | None = None,
) -> Observation:
    """Follow a server until ``stop()`` says so, and return what was seen in all.

    Args:
        url: address of the server.
        expected: what was predicted for this run.
        interval: seconds between two readings.
        stop: asked after every reading; None = only an error or Ctrl-C ends it.
        report: called with the whole observation so far whenever there are new tokens or a new finding.
        read: reads the counters (for other servers and for tests).
        wait: how to wait (for tests and event loops); raising CancelledError ends the watch.
        alive: whether the server process still lives; when it does not, watching ends with an error.

    Raises:
        EngineError: the server went away.
    """
    start = read(url)
    seen = between(start, start)
    told: tuple[Kind, ...] = ()
    tokens = -1.0
    while True:
        try:
            now = read(url)
        except EngineError:
            if alive is not None and not alive():
                raise EngineError("The server has stopped.", "Its last lines say why.") from None
            raise
        seen = between(start, now)
        findings = judge(seen, expected)
        kinds = tuple(f.kind for f in findings)
        if report is not None and (seen.tokens != tokens or kinds != told):
            report(seen, findings)
        tokens, told = seen.tokens, kinds
        if stop is not None and stop():
            return seen
        try:
            wait(interval)
        except CancelledError:
            return seen
