"""Measuring a server that somebody else started: a running llama-server, or LM Studio.

What it was started with cannot be changed from outside, so less can be measured, and what is missing is said:

* **llama-server**: drafting cannot be switched per request. Plain steps are measured on the same server with requests
  of two tokens, for which llama.cpp drafts nothing (the budget leaves no room); with a draft model they hold its
  one-token catch-up, so the speedup comes out slightly too high. A second, plain server (``baseline_url``) avoids that.
* **LM Studio**: drafting is chosen per request (``draft_model``), so both arms run in turn. Its REST API tells speed,
  time to first token and draft counts, but no tokens; the draft length is a setting of the application.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any

from advisor.errors import CancelledError, EngineError, InputError, NotDraftedError
from advisor.llamacpp.client import Client, Completion, SpeculationCounters
from advisor.llamacpp.confirm import Confirmation, Predictor, Report, Run, difference
from advisor.llamacpp.find import Capabilities, Engine
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
    draft_max: int = 3,
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
        draft_max: draft length it was started with, for the record and the prediction.
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
        EngineError: nobody answers there, or it is neither llama-server nor LM Studio.
        NotDraftedError: it drafted nothing.
    """
    with ExitStack() as stack:
        client = stack.enter_context(Client(url, api_key))
        remote: _Llama | _LmStudio
        if _is_lm_studio(client):
            remote = _LmStudio(client, target, draft)
        else:
            plain = stack.enter_context(Client(baseline_url, api_key)) if baseline_url else None
            remote = _Llama(client, plain, draft)
        run = _RemoteRun(
            remote, method, draft_max, tuple(prompts), max_tokens, repetitions, precision, progress, cancel
        )
        run.measure((draft_max,))
        return run.confirmation(predictor, prediction)


def describe_server(url: str, api_key: str | None = None) -> str | None:
    """Path of the model a llama-server says it serves; None for LM Studio or if it does not say.

    Raises:
        EngineError: nobody answers.
    """
    with Client(url, api_key) as client:
        if _is_lm_studio(client):
            return None
        try:
            path = client.props().get("model_path")
        except ConnectionError as error:
            raise EngineError(str(error), "Is the server running?") from None
    return path if isinstance(path, str) else None


def _is_lm_studio(client: Client) -> bool:
    try:
        status, data = client.raw("GET", "/api/v0/models", timeout=10)
    except ConnectionError as error:
        raise EngineError(f"{error}.", "Start the server, or correct --url.") from None
    if status in (401, 403):
        raise EngineError(f"{client.url} wants an API token.", "Give it in LM_API_TOKEN or with --api-key.")
    return status == 200 and b'"data"' in data


class _Llama:
    """A running llama-server."""

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

    def speculative(self, prompt: Prompt, tokens: int) -> tuple[Completion, SpeculationCounters | None]:
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


class _LmStudio:
    """LM Studio's server, by its own REST API."""

    comparable = True

    def __init__(self, client: Client, target: str | None, draft: str | None) -> None:
        self.client = client
        listed = client.json("GET", "/api/v0/models", timeout=10)
        models = [m for m in listed.get("data", []) if isinstance(m, dict)] if isinstance(listed, dict) else []
        keys = [str(m.get("id")) for m in models]
        loaded = [str(m.get("id")) for m in models if m.get("state") == "loaded" and m.get("type") != "embeddings"]
        if target is None:
            if len(loaded) != 1:
                raise InputError(
                    f"LM Studio has {len(loaded)} models loaded.", "Name the target: its key as `lms ls` shows it."
                )
            target = loaded[0]
        for key in (target, draft):
            if key is not None and key not in keys:
                raise InputError(
                    f"LM Studio has no model {clean(key)}.", f"It has: {clean(', '.join(keys), 400) or 'none'}."
                )
        self.target, self.draft = target, draft
        self.label = f"LM Studio at {client.url}"
        self.build = "unknown"
        self.notes = (
            "LM Studio does not tell token ids, memory or the draft length: texts were compared by letters, and the "
            "draft length is the one set in the application (Max draft tokens).",
        )

    def speculative(self, prompt: Prompt, tokens: int) -> tuple[Completion, SpeculationCounters | None]:
        return self._ask(prompt, tokens, self.draft), None

    def baseline(self, prompt: Prompt, tokens: int, like: Completion | None) -> Completion:
        answer = self._ask(prompt, tokens, None)
        if answer.drafted:
            raise EngineError(
                "LM Studio drafts although no draft model was asked for.",
                "Switch speculative decoding (or MTP) off in the model's settings.",
            )
        return answer

    def _ask(self, prompt: Prompt, tokens: int, draft: str | None) -> Completion:
        body: dict[str, Any] = {
            "model": self.target,
            "messages": [{"role": "user", "content": prompt.prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "seed": 1,
            "stream": False,
        }
        if draft is not None:
            body["draft_model"] = draft
        answer = self.client.json("POST", "/api/v0/chat/completions", body)
        self._remember(answer)
        return parse_lm_studio(answer, self.client.url)

    def _remember(self, answer: Any) -> None:
        runtime = answer.get("runtime") if isinstance(answer, dict) else None
        if isinstance(runtime, dict):
            self.build = clean(f"{runtime.get('name', '')} {runtime.get('version', '')}".strip(), 60) or "unknown"


def parse_lm_studio(answer: Any, url: str) -> Completion:
    """A ``/api/v0/chat/completions`` answer: ``stats`` hold the speed, ``usage`` or ``stats`` the draft counts.

    Raises:
        EngineError: no statistics.
    """
    try:
        stats, usage = answer["stats"], answer["usage"]
        rate, count = float(stats["tokens_per_second"]), int(usage["completion_tokens"])
        message = answer["choices"][0]["message"]
    except (KeyError, TypeError, ValueError, IndexError):
        raise EngineError(f"{url} answered without statistics.", "Update LM Studio to 0.3.9 or newer.") from None

    def draft_count(name: str) -> int | None:
        value = usage.get(name, stats.get(name))
        return int(value) if isinstance(value, int | float) else None

    text = f"{message.get('reasoning_content') or ''}{message.get('content') or ''}"
    return Completion(
        text=text,
        tokens=None,
        prompt_tokens=int(usage.get("prompt_tokens", 0)),
        cached_tokens=0,
        prompt_ms=1000 * float(stats.get("time_to_first_token", 0.0)),
        predicted=count,
        # tokens_per_second leaves the first token out, as llama.cpp does.
        predicted_ms=(count - 1) / rate * 1000 if rate > 0 else 0.0,
        drafted=draft_count("total_draft_tokens_count"),
        accepted=draft_count("accepted_draft_tokens_count"),
    )


class _RemoteRun(Run):
    """A confirmation on servers that are not ours."""

    def __init__(
        self,
        remote: _Llama | _LmStudio,
        method: Method,
        draft_max: int,
        prompts: tuple[Prompt, ...],
        max_tokens: int,
        repetitions: tuple[int, int],
        precision: float,
        progress: Report | None,
        cancel: Cancel | None,
    ) -> None:
        kind = "lmstudio" if isinstance(remote, _LmStudio) else "url"
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
        self.remote, self.draft_max = remote, draft_max
        self.names = (remote.target, remote.draft)
        self.simultaneous = True
        self.comparable = remote.comparable
        self.notes = remote.notes

    def measure(self, lengths: Sequence[int]) -> None:
        """Ask both arms in turn; an interruption keeps what is there."""
        (k,) = lengths
        self.total = self.total_of_one()
        self.samples = {k: []}
        try:
            # Caches and clocks: never counted.
            self.remote.speculative(Prompt(id="warm-up", prompt="Count from one to ten."), 16)
            for repetition in range(self.most):
                for prompt in self.prompts:
                    self._one(k, prompt)
                if repetition == 0 and not any(s.speculative.drafted for s in self.samples[k]):
                    raise NotDraftedError(
                        f"{self.remote.label} drafted nothing.",
                        "Check that the draft is compatible and that speculative decoding is switched on.",
                    )
                if repetition + 1 >= self.least and self.narrow(k):
                    break
        except (CancelledError, KeyboardInterrupt):
            self.complete = False
            if not self.samples[k]:
                raise
        except ConnectionError as error:
            raise EngineError(f"{error}.", "The server went away; look at its own log.") from None
        self.engine = self.engine.model_copy(update={"build": self.remote.build})

    def _one(self, k: int, prompt: Prompt) -> None:
        if self.cancel is not None and self.cancel():
            raise CancelledError("Stopped before anything was measured.")
        self.work_began = self.work_began or time.monotonic()
        spec, counters = self.remote.speculative(prompt, self.max_tokens)
        base = self.remote.baseline(prompt, self.max_tokens, spec)
        self.done += 2
        self.say(f"{prompt.id}: {spec.tokens_per_second or 0:.1f} tok/s with drafting")
        self.keep(k, prompt, base, spec, max(1, spec.predicted - 1 - (spec.accepted or 0)), counters)
