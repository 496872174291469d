"""Watching a server: counters, their differences, and the sentence when reality leaves the range."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from advice_samples import spread

from advisor.advice.recommendation import Expectation
from advisor.advice.watch import (
    MIN_TOKENS,
    Counters,
    Finding,
    Observation,
    between,
    counters_of,
    judge,
    parse_metrics,
    read_counters,
    watch,
)
from advisor.errors import CancelledError, EngineError

# Text of a real `/metrics` of llama-server b11434, shortened.
METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 21
llamacpp:tokens_predicted_total 192
llamacpp:tokens_predicted_seconds_total 6.4
llamacpp:n_decode_total 76
llamacpp:spec_decode_num_draft_tokens_total 279
llamacpp:spec_decode_num_accepted_tokens_total 114
llamacpp:spec_decode_num_drafts_total 93
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 60
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 54
llamacpp:predicted_tokens_seconds NaN
garbage line {
"""
PAIR = Expectation(speculates=True, speed=spread(30), acceptance=spread(0.6, 0.15), break_even_acceptance=0.25)
PLAIN = Expectation(speculates=False, speed=spread(20))


def kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [f.kind for f in findings]


def seen(tps: float, acceptance: float | None, tokens: float = 600, speculative: bool | None = True) -> Observation:
    drafted = None if acceptance is None else 600.0
    return Observation(
        tokens=tokens,
        seconds=tokens / tps,
        drafted=drafted,
        accepted=None if acceptance is None else 600.0 * acceptance,
        rounds=None if acceptance is None else 200.0,
        speculative=speculative,
    )


def test_metrics_of_a_real_server() -> None:
    values = parse_metrics(METRICS)
    assert values["spec_decode_num_accepted_tokens_per_pos_total"] == 114
    assert "predicted_tokens_seconds" not in values
    counters = counters_of(METRICS, [{"id": 0, "speculative": True}])
    assert counters.speculative is True
    total = between(Counters(), counters)
    assert total.tps == pytest.approx(30.0)
    assert total.acceptance == pytest.approx(114 / 279)
    assert total.mean_accepted_length == pytest.approx(1 + 114 / 93)


def test_builds_without_speculative_counters() -> None:
    counters = counters_of("llamacpp:tokens_predicted_total 10\n", {"error": "slots are off"})
    assert (counters.drafted, counters.accepted, counters.rounds, counters.speculative) == (None, None, None, None)


def test_differences_and_a_restart() -> None:
    first = Counters(predicted_tokens=100, predicted_seconds=5, drafted=90, accepted=60, rounds=30)
    second = Counters(predicted_tokens=160, predicted_seconds=7, drafted=150, accepted=110, rounds=50)
    step = between(first, second)
    assert (step.tokens, step.seconds, step.drafted, step.accepted, step.rounds) == (60, 2, 60, 50, 20)
    again = between(second, first)
    assert (again.tokens, again.drafted) == (100, 90), "counters fell: the server started anew"


def test_inside_the_range_is_as_predicted() -> None:
    assert kinds(judge(seen(30, 0.6), PAIR)) == ["as predicted"]


def test_slow_with_low_acceptance_names_the_text() -> None:
    findings = judge(seen(18, 0.2), PAIR)
    assert kinds(findings) == ["acceptance low", "slower"]
    assert "Below 25% it costs speed" in findings[0].message
    assert "less often" in findings[1].message


def test_slow_at_the_expected_acceptance_names_the_machine() -> None:
    findings = judge(seen(18, 0.6), PAIR)
    assert kinds(findings) == ["slower"]
    assert "calibrate" in findings[0].message


def test_faster_with_high_acceptance() -> None:
    assert kinds(judge(seen(45, 0.9), PAIR)) == ["acceptance high", "faster"]


def test_too_little_to_say() -> None:
    assert judge(seen(5, 0.1, tokens=20), PAIR) == ()
    few = Observation(tokens=60, seconds=2, drafted=20, accepted=2, rounds=7, speculative=True)
    assert kinds(judge(few, PAIR)) == ["as predicted"], "seven rounds say nothing about acceptance"


def test_a_refused_draft_is_told_at_once() -> None:
    assert kinds(judge(seen(20, None, tokens=0.0, speculative=False), PAIR)) == ["not active"]


def test_nothing_drafted_is_never_a_result() -> None:
    nothing = Observation(tokens=600, seconds=30, drafted=0, accepted=0, rounds=0, speculative=True)
    assert kinds(judge(nothing, PAIR)) == ["nothing drafted"]


def test_a_plain_run_is_compared_with_the_baseline() -> None:
    assert kinds(judge(seen(20, None, speculative=False), PLAIN)) == ["as predicted"]
    assert (
        judge(seen(10, None, speculative=False), PLAIN)[0].message == "10.0 tok/s is below the predicted 18.0 to 22.0."
    )


def test_mixed_methods_are_judged_by_speed_alone() -> None:
    mixed = PAIR.model_copy(update={"acceptance": None})
    assert kinds(judge(seen(30, 0.95), mixed)) == ["as predicted"]


@contextmanager
def server(pages: dict[str, tuple[int, str]]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = pages.get(self.path, (404, ""))
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_reading_a_server() -> None:
    slots = json.dumps([{"id": 0, "speculative": True}])
    with server({"/metrics": (200, METRICS), "/slots": (200, slots)}) as url:
        counters = read_counters(url + "/")
    assert (counters.drafted, counters.speculative) == (279, True)


def test_a_server_without_metrics_and_broken_slots() -> None:
    with server({"/metrics": (501, "not enabled")}) as url, pytest.raises(EngineError, match="--metrics"):
        read_counters(url)
    with server({"/metrics": (200, METRICS), "/slots": (200, "<html>")}) as url:
        assert read_counters(url).speculative is None
    with server({"/metrics": (500, "")}) as url, pytest.raises(EngineError, match="does not answer"):
        read_counters(url)


def test_a_server_that_is_gone() -> None:
    with server({}) as url:
        pass
    with pytest.raises(EngineError, match="does not answer"):
        read_counters(url)


def readings(*values: Counters | Exception) -> Any:
    queue = list(values)

    def read(_: str) -> Counters:
        value = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(value, Exception):
            raise value
        return value

    return read


def at(tokens: float, tps: float, acceptance: float) -> Counters:
    return Counters(
        predicted_tokens=tokens, predicted_seconds=tokens / tps, drafted=tokens, accepted=tokens * acceptance,
        rounds=tokens / 3, speculative=True,
    )  # fmt: skip


def test_watching_reports_changes_only_and_stops() -> None:
    told: list[list[str]] = []
    waits: list[float] = []
    total = watch(
        "http://x",
        PAIR,
        interval=2.0,
        read=readings(at(0, 30, 0.6), at(0, 30, 0.6), at(200, 30, 0.6), at(200, 30, 0.6), at(500, 15, 0.1)),
        wait=waits.append,
        stop=lambda: len(waits) == 4,
        report=lambda observation, findings: told.append(kinds(findings)),
    )
    assert told == [[], ["as predicted"], ["acceptance low", "slower"]]
    assert total.tokens == 500
    assert waits == [2.0] * 4


def test_watching_ends_when_cancelled_or_when_the_server_dies() -> None:
    def cancel(_: float) -> None:
        raise CancelledError("stopped")

    assert watch("http://x", PAIR, read=readings(at(100, 30, 0.6)), wait=cancel).tokens == 0
    gone = readings(at(0, 30, 0.6), EngineError("The server at x does not answer: ConnectError."))
    with pytest.raises(EngineError, match="has stopped"):
        watch("http://x", PAIR, read=gone, wait=lambda _: None, alive=lambda: False)


@pytest.mark.engine
def test_the_counters_of_a_real_server(smollm2: Path) -> None:
    """A real llama.cpp drafts from a repeating prompt; what it counts is what is read."""
    pytest.importorskip("xllamacpp")
    from advisor.llamacpp.embedded import embedded_engine
    from advisor.llamacpp.server import Server, ServerOptions

    options = ServerOptions(
        model=str(smollm2), method="ngram-simple", draft_max=4, context=512, threads=1, warmup=False
    )
    with Server(embedded_engine(), options) as server:
        before = read_counters(server.client.url)
        assert before.speculative is True
        assert before.predicted_tokens == 0
        body = {"prompt": "The cat sat on the mat. " * 12 + "The cat", "n_predict": 48, "temperature": 0}
        answer = server.client.json("POST", "/completion", body)
        after = read_counters(server.client.url)
    total = between(before, after)
    assert total.tokens == answer["timings"]["predicted_n"]
    assert total.drafted == answer["timings"]["draft_n"]
    assert total.accepted == answer["timings"]["draft_n_accepted"]
    expected = Expectation(speculates=True, speed=spread(1e6))
    if total.tokens >= MIN_TOKENS:
        assert kinds(judge(total, expected)) == ["slower"]
