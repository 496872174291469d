"""Measuring a server that somebody else started: a running llama-server, or LM Studio.

What it was started with cannot be changed from outside, so less can be measured, and what is missing is said:

* **llama-server**: drafting cannot be switched per request. Plain steps are measured on the same server with requests
  of two tokens, for which llama.cpp drafts nothing (the budget leaves no room); with a draft model they hold its
  one-token catch-up, so the speedup comes out slightly too high. A second, plain server (``baseline_url``) avoids that.
* **LM Studio**: drafting is chosen per request, so both arms run in turn on one loaded model, and with its SDK every
  request has its own draft length (:mod:`advisor.llamacpp.lmstudio`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from advisor.errors import CancelledError, EngineError, InputError, NotDraftedError
from advisor.llamacpp.client import Client, Completion, SpeculationCounters
from advisor.llamacpp.confirm import Confirmation, Predictor, Report, Run, difference
from advisor.llamacpp.find import Capabilities, Engine
from advisor.llamacpp.lmstudio import LmStudio, list_models, open_lm_studio
from advisor.llamacpp.prompts import Prompt
from advisor.llamacpp.server import Cancel
from advisor.speculation.prediction import Method, Prediction
from advisor.text import clean

_NONE = Capabilities(flags=frozenset())
_STEPS = 8
"""Two-token requests per plain measurement."""


def confirm_server(
    url: str,
    *,
    target: str | None = None,
    draft: str | None = None,
    method: Method = "draft-simple",
    draft_max: int | Sequence[int] = 3,
    baseline_url: str | None = None,
    api_key: str | None = None,
    prompts: Sequence[Prompt],
    max_tokens: int = 96,
    repetitions: tuple[int, int] = (2, 5),
    precision: float = 0.05,
    predictor: Predictor | None = None,
    prediction: Prediction | None = None,
    progress: Report | None = None,
    cancel: Cancel | None = None,
) -> Confirmation:
    """Compare plain and drafting speed of a running server.

    Args:
        url: llama-server or LM Studio.
        target: LM Studio: key of the model (None = the loaded one). llama-server: ignored, it has one model.
        draft: LM Studio: key of the draft model. llama-server: name for the record.
        method: what the server drafts with, for the record.
        draft_max: LM Studio with its SDK: draft length(s) to measure; several = a sweep. Else: the one the server was
            started with, for the record and the prediction.
        baseline_url: a second llama-server with the same model and no drafting.
        api_key: bearer token.
        prompts: what to ask.
        max_tokens: most tokens per request.
        repetitions: least and most runs over all prompts.
        precision: stop when the speedup's interval is this narrow.
        predictor: prediction for a draft length, blind and at a given acceptance.
        prediction: instead of ``predictor``: the one prediction to compare with.
        progress: told about every request.
        cancel: asked before every request.

    Raises:
        InputError: a model, method or draft length it does not have.
        EngineError: nobody answers there, or it is neither llama-server nor LM Studio.
        NotDraftedError: it drafted nothing.
    """
    lengths = (draft_max,) if isinstance(draft_max, int) else tuple(dict.fromkeys(draft_max))
    if not lengths or any(not 1 <= k <= 256 for k in lengths):
        raise InputError("Draft lengths must lie between 1 and 256.")
    with ExitStack() as stack:
        client = stack.enter_context(Client(url, api_key))
        remote: _Llama | LmStudio
        models = list_models(client, api_key)
        if models is not None:
            if method != "draft-simple":
                raise InputError(f"LM Studio drafts with a draft model only, not by {method}.", "Leave --method out.")
            if baseline_url is not None:
                raise InputError("LM Studio measures both arms itself.", "Leave --baseline-url out.")
            remote = stack.enter_context(open_lm_studio(client, models, target, draft, api_key))
        else:
            plain = stack.enter_context(Client(baseline_url, api_key)) if baseline_url else None
            remote = _Llama(client, plain, draft)
        if len(lengths) > 1 and remote.fixed is not None:
            raise InputError(f"{remote.fixed}, so draft lengths cannot be swept.", "Give one --draft-max.")
        run = _RemoteRun(remote, method, tuple(prompts), max_tokens, repetitions, precision, progress, cancel)
        run.measure(lengths)
        return run.confirmation(predictor, prediction)


def describe_server(url: str, api_key: str | None = None) -> str | None:
    """Path of the model a llama-server says it serves; None for LM Studio or if it does not say.

    Raises:
        EngineError: nobody answers.
    """
    with Client(url, api_key) as client:
        if list_models(client, api_key) is not None:
            return None
        try:
            path = client.props().get("model_path")
        except ConnectionError as error:
            raise EngineError(str(error), "Is the server running?") from None
    return path if isinstance(path, str) else None


class _Llama:
    """A running llama-server."""

    fixed = "A running llama-server has one draft length"
    """Why the draft length cannot be chosen per request."""

    def __init__(self, client: Client, plain: Client | None, draft: str | None) -> None:
        self.client, self.plain = client, plain
        self.draft = draft
        try:
            props = client.props()
            speculating = client.speculative()
            if plain is not None and plain.speculative():
                raise InputError("The server of --baseline-url speculates too.", "Start it without --spec-type.")
        except ConnectionError as error:
            raise EngineError(f"{error}.", "Start the server, or correct the address.") from None
        if speculating is False:
            raise NotDraftedError(
                f"The llama-server at {client.url} does not speculate.",
                "Start it with --spec-type (a draft given with -md alone is never used).",
            )
        self.label = f"llama-server at {client.url}"
        self.build = clean(str(props.get("build_info", "unknown")), 40)
        self.target = clean(str(props.get("model_path") or props.get("model_alias") or "unknown model"), 200)
        self.notes = (
            ()
            if plain is not None
            else (
                "Plain speed was measured on the same server by single steps without drafts; with a draft model they "
                "hold its catch-up, so the real speedup may be a few per cent lower. --baseline-url avoids that.",
            )
        )

    def speculative(self, prompt: Prompt, tokens: int, k: int) -> tuple[Completion, SpeculationCounters | None]:
        before = self.client.counters()
        answer = self.client.complete(self._text(self.client, prompt), tokens)
        after = self.client.counters()
        return answer, difference(before, after)

    def baseline(self, prompt: Prompt, tokens: int, like: Completion | None) -> Completion:
        if self.plain is not None:
            return self.plain.complete(self._text(self.plain, prompt), tokens)
        text = self._text(self.client, prompt)
        answers = [self.client.complete(text, 2, cache_prompt=True, ignore_eos=True) for _ in range(_STEPS)]
        if any(a.drafted for a in answers):
            raise EngineError(
                f"{self.label} drafts even for two tokens, so its plain speed cannot be measured.",
                "Start a second server without drafting and give it with --baseline-url.",
            )
        step = median(a.predicted_ms / max(1, a.predicted - 1) for a in answers)
        first = answers[0]
        count = like.predicted if like is not None else 2
        return first.model_copy(update={"predicted": count, "predicted_ms": step * (count - 1), "tokens": None})

    @property
    def comparable(self) -> bool:
        """Whether both arms write the same text that could be compared."""
        return self.plain is not None

    def _text(self, client: Client, prompt: Prompt) -> str:
        return prompt.prompt if prompt.raw else client.apply_template(prompt.prompt) or prompt.prompt


class _RemoteRun(Run):
    """A confirmation on servers that are not ours."""

    def __init__(
        self,
        remote: _Llama | LmStudio,
        method: Method,
        prompts: tuple[Prompt, ...],
        max_tokens: int,
        repetitions: tuple[int, int],
        precision: float,
        progress: Report | None,
        cancel: Cancel | None,
    ) -> None:
        kind = "lmstudio" if isinstance(remote, LmStudio) else "url"
        super().__init__(
            engine=Engine(
                kind=kind, command=(), version=remote.label, build=remote.build, capabilities=_NONE, origin="running"
            ),
            target=None,
            draft=None,
            method=method,
            prompts=prompts,
            max_tokens=max_tokens,
            repetitions=repetitions,
            precision=precision,
            forced=None,
            context=0,
            threads=None,
            gpu_layers=None,
            extra=(),
            progress=progress,
            cancel=cancel,
        )
        self.remote = remote
        self.names = (remote.target, remote.draft)
        self.simultaneous = True
        self.comparable = remote.comparable
        self.notes = remote.notes

    def measure(self, lengths: Sequence[int]) -> None:
        """Ask both arms in turn; an interruption keeps what is there."""
        self.total = len(lengths) * self.total_of_one()
        self.samples = {k: [] for k in lengths}
        try:
            # Caches and clocks: never counted.
            self.remote.speculative(Prompt(id="warm-up", prompt="Count from one to ten."), 16, lengths[0])
            for k in lengths:
                self._one_draft_length(k)
        except (CancelledError, KeyboardInterrupt):
            self.complete = False
            if not any(self.samples.values()):
                raise
        except ConnectionError as error:
            raise EngineError(f"{error}.", "The server went away; look at its own log.") from None
        self.engine = self.engine.model_copy(update={"build": self.remote.build})

    def _one_draft_length(self, k: int) -> None:
        skipped = self.total_of_one()
        for repetition in range(self.most):
            for i, prompt in enumerate(self.prompts):
                self._one(k, prompt, plain_first=(i + repetition) % 2 == 0)
            skipped -= 2 * len(self.prompts)
            if repetition == 0 and not any(s.speculative.drafted for s in self.samples[k]):
                raise NotDraftedError(
                    f"{self.remote.label} drafted nothing.",
                    "Check that the draft is compatible and that speculative decoding is switched on.",
                )
            if repetition + 1 >= self.least and self.narrow(k):
                break
        self.total -= skipped

    def _one(self, k: int, prompt: Prompt, plain_first: bool) -> None:
        if self.cancel is not None and self.cancel():
            raise CancelledError("Stopped before anything was measured.")
        self.work_began = self.work_began or time.monotonic()
        # Only arms that write the same text can change places; the other needs to know what was written.
        early = self.remote.baseline(prompt, self.max_tokens, None) if plain_first and self.comparable else None
        spec, counters = self.remote.speculative(prompt, self.max_tokens, k)
        base = early or self.remote.baseline(prompt, self.max_tokens, spec)
        self.done += 2
        self.say(f"{prompt.id}: {spec.tokens_per_second or 0:.1f} tok/s with drafting")
        self.keep(k, prompt, base, spec, max(1, spec.predicted - 1 - (spec.accepted or 0)), counters)
