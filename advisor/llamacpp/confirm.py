"""Confirming a prediction: llama.cpp really runs, with and without speculation, on the same prompts.

Both arms are interleaved, warm, greedy, one slot, without prompt cache, same build and context. A run in which nothing
was drafted is an error, never a result.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from advisor.base import Frozen, Range
from advisor.errors import (
    EXIT_INCONCLUSIVE,
    EXIT_OK,
    EXIT_REFUTED,
    AdvisorError,
    CancelledError,
    EngineError,
    InputError,
)
from advisor.llamacpp.client import Completion, SpeculationCounters
from advisor.llamacpp.contention import ContentionMeter
from advisor.llamacpp.find import Engine, find_engine, list_devices, system_config
from advisor.llamacpp.prompts import DEFAULT_TASKS, Prompt, prompts_for
from advisor.llamacpp.server import Cancel, Server, ServerOptions, not_drafted, server_arguments
from advisor.llamacpp.statistics import half_width, noise, ratio_range
from advisor.speculation.prediction import Method, Prediction, Task

SCHEMA_VERSION = 1
ConfirmationVerdict = Literal["confirmed", "refuted", "inconclusive", "measured"]
"""``measured`` = there was no prediction to compare with."""
EXIT_CODES: dict[ConfirmationVerdict, int] = {
    "confirmed": EXIT_OK,
    "measured": EXIT_OK,
    "refuted": EXIT_REFUTED,
    "inconclusive": EXIT_INCONCLUSIVE,
}
_STATEFUL = frozenset({"ngram-mod", "ngram-cache", "ngram-map-k", "ngram-map-k4v"})
"""Their tables outlive a request, so a repeated prompt would draft from its own first answer."""
_WIDE = math.log(1.3)
"""An interval wider than this in all cannot decide anything."""
_ROOM = 1.15
"""Memory asked for beyond the files' sizes: cache, compute buffers."""


class Progress(Frozen):
    """Where a long measurement stands; ``remaining`` [s] is an estimate from what was done so far."""

    done: int
    total: int
    message: str
    remaining: float | None = None


Report = Callable[[Progress], None]
Predictor = Callable[[int, "float | None"], Prediction]
"""Prediction for a draft length, blind (None) or at a given acceptance (accepted / drafted)."""


class PromptResult(Frozen):
    """One prompt in both arms. ``divergence`` = index of the first token that differs, None = same text."""

    id: str
    task: Task | None
    repetitions: int
    tokens: int
    baseline_tps: float
    speculative_tps: float
    speedup: float
    drafted: int
    accepted: int
    identical: bool
    divergence: int | None = None
    baseline_ttft_ms: float
    speculative_ttft_ms: float


class Measurement(Frozen):
    """One draft length, measured. Intervals are 95 %; ``acceptance`` = accepted / drafted.

    ``round_cost`` = mean time of a round in decode steps of the baseline arm: R(k), measured. ``positions[i]`` =
    share of rounds that accepted draft i+1 (from ``/metrics``; empty if the build does not tell).
    """

    draft_max: int
    speedup: Range
    baseline_tps: float
    speculative_tps: float
    acceptance: float
    mean_accepted_length: float
    round_cost: Range
    rounds: int
    drafted: int
    accepted: int
    positions: tuple[float, ...] = ()
    identical: bool
    prompts: tuple[PromptResult, ...]
    baseline_ttft_ms: float
    speculative_ttft_ms: float
    baseline_memory: int
    """Peak resident memory of the process [bytes]."""
    speculative_memory: int
    enough: bool
    """Whether repetitions stopped because the interval was narrow enough."""


class Comparison(Frozen):
    """Predicted against measured, and how much of the difference is content and how much physics."""

    draft_max: int
    predicted_speedup: Range
    measured_speedup: Range
    predicted_round_cost: float
    measured_round_cost: float
    predicted_acceptance: Range | None = None
    measured_acceptance: float
    predicted_baseline_tps: Range | None = None
    measured_baseline_tps: float
    speedup_at_measured_acceptance: float | None = None
    """The prediction once it is told the acceptance: what is left is the physics' error."""
    verdict: ConfirmationVerdict


class Confirmation(Frozen):
    """The record of one confirmation; one JSON line of the results file."""

    schema_version: int = SCHEMA_VERSION
    created: str
    engine: str
    build: str
    machine: str
    target: str
    draft: str | None
    method: Method
    context: int
    max_tokens: int
    forced_acceptance: float | None = None
    """Acceptance forced by the engine; the text is then meaningless, the times are not."""
    simultaneous: bool
    """Both servers alive at once (True), or taking turns."""
    measurements: tuple[Measurement, ...]
    best_draft_max: int
    """Draft length with the highest measured speed; 0 = none is faster than the baseline."""
    comparison: Comparison | None = None
    verdict: ConfirmationVerdict
    reasons: tuple[str, ...]
    commands: tuple[str, ...]
    """Command lines of both arms (for the embedded engine: the equivalent llama-server)."""
    contention: float | None = None
    """Share of the processors that other programs used meanwhile, 0..1."""
    complete: bool = True
    """False = interrupted; what was measured until then is kept."""

    @property
    def measurement(self) -> Measurement:
        """The draft length asked for; of a sweep, the fastest."""
        return max(self.measurements, key=lambda m: m.speedup.median)

    @property
    def exit_code(self) -> int:
        """For scripts: 0 confirmed, 10 refuted, 11 inconclusive."""
        return EXIT_CODES[self.verdict]


class _Sample(Frozen):
    prompt: str
    baseline: Completion
    speculative: Completion
    rounds: int
    counters: SpeculationCounters | None


def confirm(
    target: str | Path,
    draft: str | Path | None = None,
    *,
    method: Method | None = None,
    draft_max: int | Sequence[int] | None = None,
    engine: str | Engine = "auto",
    tasks: Sequence[Task] = DEFAULT_TASKS,
    prompts: Sequence[Prompt] | None = None,
    max_tokens: int = 96,
    repetitions: tuple[int, int] = (2, 5),
    precision: float = 0.05,
    forced_acceptance: float | None = None,
    context: int | None = None,
    threads: int | None = None,
    gpu_layers: int | None = None,
    extra: Sequence[str] = (),
    predictor: Predictor | None = None,
    prediction: Prediction | None = None,
    progress: Report | None = None,
    cancel: Cancel | None = None,
    force: bool = False,
) -> Confirmation:
    """Run llama.cpp with and without speculation and compare.

    Args:
        target: GGUF file of the target.
        draft: GGUF file of the draft or drafter; None for MTP inside the target and n-gram methods.
        method: llama.cpp's method name; None = by the files.
        draft_max: draft length(s); several = a sweep. None = the engine's default (3, or 48 for n-gram methods).
        engine: ``auto``, ``embedded``, a path, or an :class:`Engine`.
        tasks: which shipped prompts to use, when ``prompts`` is None.
        prompts: own prompts.
        max_tokens: most tokens generated per request.
        repetitions: least and most runs over all prompts.
        precision: stop repeating when the half-width of the speedup's 95 % interval is below this share.
        forced_acceptance: accepted / drafted that the engine shall pretend (needs ``--spec-synth-rates``).
        context: context size of the servers [tokens]; None = as long as the prompts need.
        threads: CPU threads; None = the engine's choice.
        gpu_layers: ``-ngl``; None = the engine's choice.
        extra: further llama-server arguments for both arms.
        predictor: gives the prediction for a draft length (and at a given acceptance).
        prediction: instead of ``predictor``: the one prediction to compare with.
        progress: told about every request.
        cancel: asked before every request; True = stop and keep what was measured.
        force: run although a combination is known to abort the engine.

    Raises:
        InputError: unusable files or values.
        EngineError: llama.cpp cannot be found, started or kept alive.
        NotDraftedError: nothing was drafted, with the reason.
        CancelledError: stopped before anything was measured.
    """
    engine = engine if isinstance(engine, Engine) else find_engine(engine)
    target, draft = Path(target), Path(draft) if draft is not None else None
    method = method or _infer(target, draft)
    if method == "none":
        raise InputError("Nothing to confirm with method none.")
    lengths = _lengths(draft_max, method)
    asked = tuple(prompts) if prompts is not None else prompts_for(tasks)
    if not asked:
        raise InputError("There is no prompt to measure with.")
    if not 2 <= max_tokens <= 1_000_000:
        raise InputError(f"At least 2 tokens must be generated, not {max_tokens}.")
    if forced_acceptance is not None and not 0 <= forced_acceptance <= 1:
        raise InputError(f"An acceptance of {forced_acceptance:g} is not a share.", "Give accepted / drafted, 0 to 1.")
    if not force:
        from advisor.llamacpp.preflight import preflight

        if reasons := preflight(target, draft, method, engine):
            raise InputError(" ".join(reasons), "Use --force to run it all the same.")
    run = Run(
        engine=engine,
        target=target,
        draft=draft,
        method=method,
        prompts=asked,
        max_tokens=max_tokens,
        repetitions=repetitions,
        precision=precision,
        forced=forced_acceptance,
        context=context or _context_for(asked, max_tokens),
        threads=threads,
        gpu_layers=gpu_layers,
        extra=tuple(extra),
        progress=progress,
        cancel=cancel,
    )
    run.measure(lengths)
    return run.confirmation(predictor, prediction)


def verdict_of(predicted: Range, measured: Range) -> ConfirmationVerdict:
    """Whether a measured speedup bears a predicted range out.

    *refuted*: the two intervals do not meet. *confirmed*: the measured value lies in the predicted range and the
    measurement is sharp enough to mean it. *inconclusive*: anything between.
    """
    if measured.low > predicted.high or measured.high < predicted.low:
        return "refuted"
    if 2 * half_width(measured) > _WIDE:
        return "inconclusive"
    return "confirmed" if predicted.low <= measured.median <= predicted.high else "inconclusive"


def forced_rates(acceptance: float, k: int) -> tuple[float, ...]:
    """``--spec-synth-rates`` for accepted / drafted = ``acceptance``: chance that the first i+1 drafts are accepted.

    One conditional rate a for every position, with (a + ... + a^k) / k = acceptance, found by bisection.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(1, k + 1)) / k < acceptance:
            low = middle
        else:
            high = middle
    return tuple(high**i for i in range(1, k + 1))


def divergence(a: Completion, b: Completion) -> int | None:
    """Index of the first token (or character, if the engine sends no tokens) that differs; None = identical."""
    one: Sequence[object] = a.tokens if a.tokens is not None and b.tokens is not None else a.text
    two: Sequence[object] = b.tokens if a.tokens is not None and b.tokens is not None else b.text
    for i, (x, y) in enumerate(zip(one, two, strict=False)):
        if x != y:
            return i
    return None if len(one) == len(two) else min(len(one), len(two))


def both_fit(engine: Engine, target: Path, draft: Path | None) -> bool:
    """Whether two servers can live at the same time without either being squeezed."""
    import psutil

    target_size = _size(target)
    need = 2 * target_size + (_size(draft) if draft else 0)
    devices = [d for d in list_devices(engine) if d.free is not None]
    if devices:
        # Discrete memory: llama.cpp would silently offload fewer layers of the second server.
        return need * _ROOM < sum(d.free or 0 for d in devices)
    # A memory-mapped target is shared by both, but repacked weights are not: count it twice.
    return bool(need * _ROOM < psutil.virtual_memory().available)


def _size(path: Path) -> int:
    """Bytes of a model, all its shards together.

    Raises:
        InputError: no such file.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    stem = path.name.rpartition("-00001-of-")
    return sum(p.stat().st_size for p in path.parent.glob(f"{stem[0]}-*-of-{stem[2]}")) if stem[0] else size


def _infer(target: Path, draft: Path | None) -> Method:
    from advisor.models.reference import describe
    from advisor.speculation.predict import infer_method

    return infer_method(describe(str(target)), describe(str(draft)) if draft else None)


def _lengths(draft_max: int | Sequence[int] | None, method: Method) -> tuple[int, ...]:
    if draft_max is None:
        from advisor.speculation.predict import default_draft_max

        draft_max = default_draft_max(method)
    lengths = (draft_max,) if isinstance(draft_max, int) else tuple(draft_max)
    if not lengths or any(not 1 <= k <= 256 for k in lengths):
        raise InputError("Draft lengths must lie between 1 and 256.")
    return tuple(dict.fromkeys(lengths))


def _context_for(prompts: Sequence[Prompt], max_tokens: int) -> int:
    # One token per two bytes is more than any tokenizer of today needs for text; 512 hold a template and the draft.
    longest = max(len(p.prompt.encode()) for p in prompts) // 2
    return max(2048, -(-(longest + max_tokens + 512) // 256) * 256)


class Run:
    """One confirmation while it goes on."""

    def __init__(
        self,
        *,
        engine: Engine,
        target: Path | None,
        draft: Path | None,
        method: Method,
        prompts: tuple[Prompt, ...],
        max_tokens: int,
        repetitions: tuple[int, int],
        precision: float,
        forced: float | None,
        context: int,
        threads: int | None,
        gpu_layers: int | None,
        extra: tuple[str, ...],
        progress: Report | None,
        cancel: Cancel | None,
    ) -> None:
        self.engine, self.target, self.draft, self.method = engine, target, draft, method
        self.prompts, self.max_tokens = prompts, max_tokens
        self.least, self.most = max(1, repetitions[0]), max(1, *repetitions)
        self.precision, self.forced = precision, forced
        self.base_options = ServerOptions(
            model=str(target or ""),
            context=context,
            threads=threads,
            gpu_layers=gpu_layers,
            extra=extra,
        )
        self.progress, self.cancel = progress, cancel
        self.simultaneous = target is not None and both_fit(engine, target, draft)
        self.names = (target.name if target else "", draft.name if draft else None)
        self.comparable = forced is None
        self.notes: tuple[str, ...] = ()
        self.samples: dict[int, list[_Sample]] = {}
        self.enough: dict[int, bool] = {}
        self.memory: dict[str, int] = {}
        self.commands: dict[str, str] = {}
        self.rendered: dict[str, str] = {}
        self.complete = True
        self.began = time.monotonic()
        self.work_began: float | None = None
        self.done = 0
        self.total = 0
        self.meter = ContentionMeter()
        self._replays = self._has_replays()

    # ---- arms

    def speculative_options(self, k: int) -> ServerOptions:
        """Options of the drafting arm with draft length ``k``."""
        rates = forced_rates(self.forced, k) if self.forced is not None else ()
        return self.base_options.model_copy(
            update={
                "draft": str(self.draft) if self.draft else None,
                "method": self.method,
                "draft_max": k,
                "synth_rates": rates,
            }
        )

    @contextmanager
    def server(self, options: ServerOptions) -> Iterator[Server]:
        """A warm server; its death inside the block is explained."""
        name = "speculative" if options.method != "none" else "baseline"
        self.say(f"starting llama.cpp ({name}{f', draft length {options.draft_max}' if options.draft_max else ''})")
        with Server(self.engine, options, cancel=self.cancel) as server:
            self.commands.setdefault(f"{name} {options.draft_max or ''}".strip(), command_line(server))
            try:
                self.warm(server)
                yield server
                self.memory[name] = max(self.memory.get(name, 0), server.memory())
            except (ConnectionError, EngineError) as error:
                if isinstance(error, ConnectionError) or not server.alive():
                    raise server.explain(error) from error
                raise

    def warm(self, server: Server) -> None:
        """Caches, clocks and kernels: the first request is never counted. Also the first proof that it drafts."""
        server.prove_speculation()
        # A text of its own, so that no n-gram table learns a measured prompt.
        server.client.complete("One, two, three, one, two, three, one, two, three, one, two,", 24, ignore_eos=True)
        if server.options.method == "none" and server.client.speculative():
            raise EngineError(
                "The baseline server speculates although it was not asked to.",
                f"Remove the spec options from {system_config() or 'the llama.cpp configuration file'}.",
            )

    def render(self, server: Server, prompt: Prompt) -> str:
        """The prompt as the model's chat template writes it."""
        if prompt.id not in self.rendered:
            self.rendered[prompt.id] = (
                prompt.prompt if prompt.raw else server.client.apply_template(prompt.prompt) or prompt.prompt
            )
        return self.rendered[prompt.id]

    # ---- measuring

    def measure(self, lengths: Sequence[int]) -> None:
        """Fill ``samples``; an interruption keeps what is there."""
        self.total = len(lengths) * self.most * len(self.prompts) * 2
        self.samples = {k: [] for k in lengths}
        try:
            if self.simultaneous:
                with ExitStack() as stack:
                    baseline = stack.enter_context(self.server(self.base_options))
                    for k in lengths:
                        self._one_length(k, baseline)
            else:
                for k in lengths:
                    self._one_length(k, None)
        except (CancelledError, KeyboardInterrupt):
            self.complete = False
            if not any(self.samples.values()):
                raise

    def _one_length(self, k: int, baseline: Server | None) -> None:
        options = self.speculative_options(k)
        fresh = self.method in _STATEFUL
        skipped = self.total_of_one()
        with ExitStack() as stack:
            speculative = None
            for repetition in range(self.most):
                if baseline is None:
                    self._taking_turns(k, options, repetition)
                else:
                    if speculative is None or fresh:
                        stack.close()
                        speculative = stack.enter_context(self.server(options))
                    self._interleaved(k, baseline, speculative, repetition)
                skipped -= 2 * len(self.prompts)
                if repetition == 0 and not any(s.speculative.drafted for s in self.samples[k]):
                    raise not_drafted(options, speculative.log() if speculative else [])
                if repetition + 1 >= self.least and self.narrow(k):
                    break
        self.total -= skipped
        self.say(f"draft length {k} done")

    def total_of_one(self) -> int:
        """Requests of one draft length if all repetitions are needed."""
        return self.most * len(self.prompts) * 2

    def _interleaved(self, k: int, baseline: Server, speculative: Server, repetition: int) -> None:
        for i, prompt in enumerate(self.prompts):
            order = (baseline, speculative) if (i + repetition) % 2 == 0 else (speculative, baseline)
            answers: dict[int, tuple[Completion, int, SpeculationCounters | None]] = {}
            for server in order:
                answers[id(server)] = self.ask(server, prompt)
            base, _, _ = answers[id(baseline)]
            spec, rounds, counters = answers[id(speculative)]
            self.keep(k, prompt, base, spec, rounds, counters)

    def _taking_turns(self, k: int, options: ServerOptions, repetition: int) -> None:
        order = [self.base_options, options]
        answers: dict[str, list[tuple[Completion, int, SpeculationCounters | None]]] = {}
        for one in order if repetition % 2 == 0 else reversed(order):
            with self.server(one) as server:
                answers[one.method] = [self.ask(server, prompt) for prompt in self.prompts]
        for prompt, (base, _, _), (spec, rounds, counters) in zip(
            self.prompts, answers["none"], answers[self.method], strict=True
        ):
            self.keep(k, prompt, base, spec, rounds, counters)

    def keep(
        self,
        k: int,
        prompt: Prompt,
        base: Completion,
        spec: Completion,
        rounds: int,
        counters: SpeculationCounters | None,
    ) -> None:
        """Note one prompt asked in both arms, if both wrote more than one token."""
        if base.tokens_per_second and spec.tokens_per_second:
            self.samples[k].append(
                _Sample(prompt=prompt.id, baseline=base, speculative=spec, rounds=rounds, counters=counters)
            )

    def ask(self, server: Server, prompt: Prompt) -> tuple[Completion, int, SpeculationCounters | None]:
        """One request; also its number of rounds, and what the counters say of it."""
        if self.cancel is not None and self.cancel():
            raise CancelledError("Stopped before anything was measured.")
        self.work_began = self.work_began or time.monotonic()
        speculating = server.options.method != "none"
        before = server.client.counters() if speculating else None
        forced = self.forced is not None
        with self.meter.during(server):
            answer = server.client.complete(self.render(server, prompt), self.max_tokens, ignore_eos=forced)
        after = server.client.counters() if speculating else None
        server.memory()
        self.done += 1
        delta = difference(before, after)
        self.say(
            f"{prompt.id}: {answer.tokens_per_second or 0:.1f} tok/s {'with' if speculating else 'without'} drafting"
        )
        rounds = answer.predicted - 1 - (answer.accepted or 0)
        if self._replays and delta and delta.rounds:
            k = server.options.draft_max or 0
            full = delta.positions[k - 1] if 0 < k <= len(delta.positions) else 0
            rounds -= max(0, delta.rounds - full)
        return answer, max(1, rounds), delta

    def _has_replays(self) -> bool:
        """Whether partly accepted rounds are decoded again, which yields one more token but is no round of its own."""
        if self.target is None:
            return False
        try:
            from advisor.models.reference import describe
            from advisor.speculation.rounds import rollback_class

            return rollback_class(describe(str(self.target)), self.method) == "checkpoint"
        except (ImportError, AdvisorError):
            return False

    def narrow(self, k: int) -> bool:
        """Whether more repetitions would not sharpen the answer: interval narrow, or made of content, not noise."""
        logs = self.logs(k)
        interval = ratio_range(logs)
        error = noise(logs)
        self.enough[k] = half_width(interval) <= self.precision or (
            error is not None and 1.96 * error <= min(self.precision, half_width(interval) / 3)
        )
        return self.enough[k]

    def logs(self, k: int) -> list[list[float]]:
        """Log speedups by prompt."""
        groups: dict[str, list[float]] = {}
        for s in self.samples[k]:
            base, spec = s.baseline.tokens_per_second, s.speculative.tokens_per_second
            if base and spec:
                groups.setdefault(s.prompt, []).append(math.log(spec / base))
        return list(groups.values())

    def say(self, message: str) -> None:
        """Tell the caller where we are and how long it will take."""
        if self.progress is None:
            return
        left = None
        if self.done and self.work_began is not None:
            left = (time.monotonic() - self.work_began) / self.done * max(0, self.total - self.done)
        self.progress(Progress(done=self.done, total=max(self.total, self.done), message=message, remaining=left))

    # ---- the record

    def confirmation(self, predictor: Predictor | None, prediction: Prediction | None) -> Confirmation:
        """The record of what was measured, compared with the prediction if there is one."""
        measurements = tuple(self._measurement(k) for k, samples in self.samples.items() if samples)
        if not measurements:
            raise EngineError(
                "No request gave more than one token, so no speed can be measured.",
                "Use other prompts, or check that the model writes text at all.",
            )
        best = max(measurements, key=lambda m: m.speedup.median)
        comparison = _compare(best if len(measurements) > 1 else measurements[0], predictor, prediction)
        verdict: ConfirmationVerdict = comparison.verdict if comparison else "measured"
        return Confirmation(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            engine=self.engine.label,
            build=self.engine.build,
            machine=machine_name(),
            target=self.names[0],
            draft=self.names[1],
            method=self.method,
            context=self.base_options.context,
            max_tokens=self.max_tokens,
            forced_acceptance=self.forced,
            simultaneous=self.simultaneous,
            measurements=measurements,
            best_draft_max=best.draft_max if best.speedup.median > 1 else 0,
            comparison=comparison,
            verdict=verdict,
            reasons=tuple(self._reasons(best, comparison)),
            commands=tuple(self.commands.values()),
            contention=self.meter.share,
            complete=self.complete,
        )

    def _measurement(self, k: int) -> Measurement:
        samples = self.samples[k]
        logs = self.logs(k)
        rounds = sum(s.rounds for s in samples)
        drafted = sum(s.speculative.drafted or 0 for s in samples)
        accepted = sum(s.speculative.accepted or 0 for s in samples)
        speedup = ratio_range(logs)
        costs: dict[str, list[float]] = {}
        for s in samples:
            base, spec = s.baseline.tokens_per_second, s.speculative.tokens_per_second
            assert base
            assert spec
            costs.setdefault(s.prompt, []).append(math.log((s.speculative.predicted - 1) / s.rounds * base / spec))
        verified = sum(s.counters.rounds for s in samples if s.counters)
        width = max((len(s.counters.positions) for s in samples if s.counters), default=0)
        positions = tuple(
            sum(s.counters.positions[i] for s in samples if s.counters and i < len(s.counters.positions)) / verified
            for i in range(width)
        ) if verified else ()  # fmt: skip
        results = tuple(self._prompt_result(p, [s for s in samples if s.prompt == p.id]) for p in self.prompts
                        if any(s.prompt == p.id for s in samples))  # fmt: skip
        return Measurement(
            draft_max=k,
            speedup=speedup,
            baseline_tps=_speed([s.baseline for s in samples]),
            speculative_tps=_speed([s.speculative for s in samples]),
            acceptance=accepted / drafted if drafted else 0.0,
            mean_accepted_length=sum(s.speculative.predicted - 1 for s in samples) / rounds,
            round_cost=ratio_range(list(costs.values())),
            rounds=rounds,
            drafted=drafted,
            accepted=accepted,
            positions=positions,
            identical=all(r.identical for r in results),
            prompts=results,
            baseline_ttft_ms=_mean([s.baseline.prompt_ms for s in samples]),
            speculative_ttft_ms=_mean([s.speculative.prompt_ms for s in samples]),
            baseline_memory=self.memory.get("baseline", 0),
            speculative_memory=self.memory.get("speculative", 0),
            enough=self.enough.get(k, False),
        )

    def _prompt_result(self, prompt: Prompt, samples: list[_Sample]) -> PromptResult:
        base, spec = _speed([s.baseline for s in samples]), _speed([s.speculative for s in samples])
        # Forced acceptance writes nonsense on purpose: comparing texts would say nothing.
        first = (
            None
            if not self.comparable
            else next((d for s in samples if (d := divergence(s.baseline, s.speculative)) is not None), None)
        )
        return PromptResult(
            id=prompt.id,
            task=prompt.task,
            repetitions=len(samples),
            tokens=sum(s.speculative.predicted for s in samples),
            baseline_tps=base,
            speculative_tps=spec,
            speedup=spec / base,
            drafted=sum(s.speculative.drafted or 0 for s in samples),
            accepted=sum(s.speculative.accepted or 0 for s in samples),
            identical=first is None,
            divergence=first,
            baseline_ttft_ms=_mean([s.baseline.prompt_ms for s in samples]),
            speculative_ttft_ms=_mean([s.speculative.prompt_ms for s in samples]),
        )

    def _reasons(self, best: Measurement, comparison: Comparison | None) -> Iterator[str]:
        if not self.complete:
            yield "Interrupted: the numbers rest on fewer runs than planned."
        if comparison is not None:
            yield from _explain(comparison)
        yield from self.notes
        if self.comparable and not best.identical:
            first = next(p for p in best.prompts if not p.identical)
            yield (
                f"The texts part at token {first.divergence} of {first.id}. With quantised targets checking several "
                "tokens at once rounds differently, so near ties may fall otherwise; this is no failure."
            )
        if self.meter.share is not None and self.meter.share > 0.1:
            yield (
                f"Other programs used {self.meter.share:.0%} of the processors meanwhile; "
                "both arms suffer alike, but the interval is wider."
            )
        if not best.enough:
            yield "The interval is still wider than asked for; more repetitions would narrow it."
        if self.target is not None and (path := system_config()):
            yield f"{path} also configures llama.cpp and cannot be switched off."


def _explain(c: Comparison) -> Iterator[str]:
    p, m = c.predicted_speedup, c.measured_speedup
    yield (
        f"Predicted {p.median:.2f}x ({p.low:.2f} to {p.high:.2f}), "
        f"measured {m.median:.2f}x ({m.low:.2f} to {m.high:.2f})."
    )
    if c.predicted_acceptance is not None:
        a = c.predicted_acceptance
        yield f"Acceptance: expected {a.median:.0%} ({a.low:.0%} to {a.high:.0%}), seen {c.measured_acceptance:.0%}."
    yield f"One round costs {c.measured_round_cost:.2f} decode steps; predicted {c.predicted_round_cost:.2f}."
    if c.speedup_at_measured_acceptance is not None:
        error = abs(math.log(c.speedup_at_measured_acceptance / m.median))
        yield (
            f"Told the measured acceptance, the prediction is {c.speedup_at_measured_acceptance:.2f}x: "
            f"{error:.0%} off is physics, the rest was content."
        )


def _compare(m: Measurement, predictor: Predictor | None, given: Prediction | None) -> Comparison | None:
    try:
        blind = predictor(m.draft_max, None) if predictor is not None else given
        told = predictor(m.draft_max, m.acceptance) if predictor is not None else None
    except AdvisorError:
        return None  # e.g. nothing is known of this machine: then there is only a measurement
    if blind is None:
        return None
    speedup, cost = blind.speedup, blind.round.cost
    if blind.draft_max != m.draft_max:
        point = next((p for p in blind.curve if p.draft_max == m.draft_max), None)
        if point is None:
            return None
        speedup, cost = point.speedup, point.round_cost
    return Comparison(
        draft_max=m.draft_max,
        predicted_speedup=speedup,
        measured_speedup=m.speedup,
        predicted_round_cost=told.round.cost if told else cost,
        measured_round_cost=m.round_cost.median,
        predicted_acceptance=blind.acceptance.rate if blind.draft_max == m.draft_max else None,
        measured_acceptance=m.acceptance,
        predicted_baseline_tps=blind.baseline_tps,
        measured_baseline_tps=m.baseline_tps,
        speedup_at_measured_acceptance=told.speedup.median if told else None,
        verdict=verdict_of(speedup, m.speedup),
    )


def command_line(server: Server) -> str:
    """The command of an arm, quoted for a POSIX shell; for the embedded engine the equivalent llama-server's."""
    if server.engine.kind != "embedded":
        return shlex.join(server.command)
    from advisor.llamacpp.embedded import equivalent

    return shlex.join(server_arguments(equivalent(), server.options, 8080, "advisor"))


def machine_name() -> str:
    """Processor and operating system of this machine, for records."""
    import platform

    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{cpu} ({platform.system()})"


def _speed(answers: Sequence[Completion]) -> float:
    steps = sum(a.predicted - 1 for a in answers)
    return steps / sum(a.predicted_ms for a in answers) * 1000


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def difference(before: SpeculationCounters | None, after: SpeculationCounters | None) -> SpeculationCounters | None:
    """What happened between two readings of the counters; None if one is missing."""
    if before is None or after is None:
        return None
    return SpeculationCounters(
        rounds=after.rounds - before.rounds,
        drafted=after.drafted - before.drafted,
        accepted=after.accepted - before.accepted,
        positions=tuple(
            n - (before.positions[i] if i < len(before.positions) else 0) for i, n in enumerate(after.positions)
        ),
        decodes=after.decodes - before.decodes,
    )
