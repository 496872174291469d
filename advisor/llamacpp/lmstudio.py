"""LM Studio, measured through its own interfaces; each has what the others lack:

* the **SDK** (package ``lmstudio``, a WebSocket protocol) sets draft model and draft length of every request and counts
  drafts. It is used whenever it is installed.
* **REST v1** (``/api/v1``) lists models and checks the token; its chat knows no draft model and counts no drafts.
* **REST v0** (``/api/v0``) takes a draft model and counts drafts, but the draft length is the application's.

None of them tells token ids, memory or acceptance by position, or lets an acceptance be forced.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError as ThreadGoneError
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from advisor.errors import EngineError, InputError
from advisor.llamacpp.client import Client, Completion
from advisor.llamacpp.prompts import Prompt
from advisor.text import clean

if TYPE_CHECKING:
    import lmstudio

    from advisor.llamacpp.client import SpeculationCounters

_PATIENCE = 600.0
"""Longest silence within a request [s]; loading and reading a prompt report progress, so it is not for them."""
_GREETING = 20.0
"""Longest wait for the SDK's connection to be accepted [s]; the SDK itself would wait for ever."""
_GOODBYE = 5.0
"""How long the SDK's thread may take to end [s]."""
_INSTALL = "pip install 'draft-advisor[lmstudio]'"
_TOKEN = re.compile(r"sk-lm-([^:\s]+):(\S+)")
_UNFINISHED = ("userStopped", "modelUnloaded", "failed")
"""Stop reasons after which the statistics are of no request we made."""
_LOGGERS = (
    "AsyncWebsocketHandler",
    "AsyncWebsocketThread",
    "ChatResponseEndpoint",
    "CompletionEndpoint",
    "GetOrLoadEndpoint",
    "SyncLMStudioWebsocket",
)
"""The SDK logs under bare class names; without a handler Python would print their errors beside ours."""
_UNKNOWN = (
    "LM Studio tells neither token ids nor memory nor acceptance by position, and no acceptance can be forced: texts "
    "were compared by letters, and memory is unknown.",
    "LM Studio keeps its prompt cache, so times to the first token may be those of a prompt it already knew.",
)


class Model(NamedTuple):
    """A language model LM Studio has: its key, and the names of its loaded instances."""

    key: str
    loaded: tuple[str, ...]


def list_models(client: Client, api_key: str | None) -> tuple[Model, ...] | None:
    """Language models of an LM Studio, by REST v1 or, if it is older, v0; None = this is no LM Studio.

    Raises:
        EngineError: nobody answers, or it refuses the token.
    """
    for path, read in (("/api/v1/models", _models_v1), ("/api/v0/models", _models_v0)):
        try:
            status, data = client.raw("GET", path, timeout=10)
        except ConnectionError as error:
            raise EngineError(f"{error}.", "Start the server, or correct --url.") from None
        if status in (401, 403):
            raise _token_error(client.url, api_key)
        try:
            if status == 200:  # for paths it does not know LM Studio answers 200 too, but with an error inside
                return read(json.loads(data.decode("utf-8", "replace")))
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    return None


def _models_v1(answer: Any) -> tuple[Model, ...]:
    return tuple(
        Model(str(m["key"]), tuple(str(i["id"]) for i in m.get("loaded_instances", ())))
        for m in answer["models"]
        if m.get("type") == "llm"
    )


def _models_v0(answer: Any) -> tuple[Model, ...]:
    return tuple(
        Model(str(m["id"]), (str(m["id"]),) if m.get("state") == "loaded" else ())
        for m in answer["data"]
        if m.get("type") != "embeddings"
    )


def _token_error(url: str, api_key: str | None) -> EngineError:
    if api_key:
        return EngineError(f"{url} refuses this API token.", "Correct LM_API_TOKEN or --api-key.")
    return EngineError(f"{url} wants an API token.", "Give it in LM_API_TOKEN or with --api-key.")


@contextmanager
def open_lm_studio(
    client: Client, models: Sequence[Model], target: str | None, draft: str | None, api_key: str | None
) -> Iterator[LmStudio]:
    """A running LM Studio, through the SDK if it is installed, else through REST v0.

    Args:
        client: speaks to its REST interfaces.
        models: what :func:`list_models` found.
        target: key of a model or name of a loaded instance; None = the only loaded one.
        draft: key of the draft model.
        api_key: its API token.

    Raises:
        InputError: no such model, or a token that is none of LM Studio's.
        EngineError: the SDK cannot connect, or it refuses the token.
    """
    pair = _choose(models, target, draft)
    lost = _why_no_sdk(client.url)
    if lost is not None:
        yield _Rest(client, *pair, lost)
        return
    with _connected(client, *pair, api_key) as remote:
        yield remote


def _choose(models: Sequence[Model], target: str | None, draft: str | None) -> tuple[str, str]:
    loaded = [name for m in models for name in m.loaded]
    if target is None:
        if len(loaded) != 1:
            raise InputError(
                f"LM Studio has {len(loaded)} models loaded.", "Name the target: its key as `lms ls` shows it."
            )
        target = loaded[0]
    if draft is None:
        raise InputError("LM Studio drafts with a draft model only, and none was named.", "Give its key as the second.")
    keys = [m.key for m in models]
    for name in (target, draft):
        # key@quantisation names one file of a model
        if name not in (*keys, *loaded) and name.partition("@")[0] not in keys:
            raise InputError(
                f"LM Studio has no model {clean(name)}.", f"It has: {clean(', '.join(keys), 400) or 'none'}."
            )
    return target, draft


def _why_no_sdk(url: str) -> str | None:
    """Why the SDK cannot be used, or None if it can."""
    if url.startswith("https:"):
        return "The SDK of LM Studio cannot speak https"
    try:
        import lmstudio  # noqa: F401
    except ImportError:
        return f"The SDK of LM Studio is not installed ({_INSTALL})"
    return None


class LmStudio(ABC):
    """A running LM Studio; every request says whether it drafts.

    Attributes:
        target: key or name of the model.
        draft: key of the draft model.
        build: its runtime, once known.
        notes: what could not be measured or set.
        fixed: why the draft length cannot be chosen per request, or None if it can.
    """

    comparable = True
    """Both arms write the same text that can be compared."""

    def __init__(self, client: Client, target: str, draft: str, fixed: str | None, notes: tuple[str, ...]) -> None:
        self.client, self.target, self.draft, self.fixed = client, target, draft, fixed
        self.label = f"LM Studio at {client.url}"
        self.build = "unknown"
        self.notes = (*notes, *_UNKNOWN)

    @abstractmethod
    def ask(self, prompt: Prompt, tokens: int, k: int | None) -> Completion:
        """Generate at most ``tokens`` tokens greedily, drafting ``k`` at a time, or not at all (None).

        Raises:
            EngineError: it refused, was silent too long, or gave no statistics.
            ConnectionError: it went away.
        """

    def speculative(self, prompt: Prompt, tokens: int, k: int) -> tuple[Completion, SpeculationCounters | None]:
        """One request with drafting; LM Studio has no counters."""
        return self.ask(prompt, tokens, k), None

    def baseline(self, prompt: Prompt, tokens: int, like: Completion | None) -> Completion:
        """One request without drafting.

        Raises:
            EngineError: it drafted all the same.
        """
        answer = self.ask(prompt, tokens, None)
        if answer.drafted:
            raise EngineError(
                "LM Studio drafts although no draft model was asked for.",
                "Switch speculative decoding (or MTP) off in the model's settings.",
            )
        return answer


class _Rest(LmStudio):
    """Through ``/api/v0/chat/completions``, the only REST route that drafts."""

    def __init__(self, client: Client, target: str, draft: str, lost: str) -> None:
        note = (
            f"{lost}, so the draft length could not be set: it was the one of the application (Max draft tokens), and "
            "--draft-max is only noted."
        )
        super().__init__(client, target, draft, lost, (note,))

    def ask(self, prompt: Prompt, tokens: int, k: int | None) -> Completion:
        if prompt.raw:
            raise InputError(f"The raw prompt {clean(prompt.id)} needs the SDK of LM Studio.", f"{_INSTALL}.")
        body: dict[str, Any] = {
            "model": self.target,
            "messages": [{"role": "user", "content": prompt.prompt}],
            "max_tokens": tokens,
            "temperature": 0,
            "seed": 1,
            "stream": False,
        }
        if k is not None:
            body["draft_model"] = self.draft
        answer = self.client.json("POST", "/api/v0/chat/completions", body)
        self.build = runtime_of(answer) or self.build
        return parse_lm_studio(answer, self.client.url)


def runtime_of(answer: Any) -> str | None:
    """Name and version of the engine inside LM Studio, as a REST v0 answer tells them."""
    runtime = answer.get("runtime") if isinstance(answer, dict) else None
    if not isinstance(runtime, dict):
        return None
    return clean(f"{runtime.get('name', '')} {runtime.get('version', '')}".strip(), 60) or None


def parse_lm_studio(answer: Any, url: str) -> Completion:
    """A ``/api/v0/chat/completions`` answer: ``stats`` hold the speed, ``usage`` or ``stats`` the draft counts.

    Raises:
        EngineError: no statistics.
    """
    try:
        stats, usage = answer["stats"], answer["usage"]
        rate, count = float(stats["tokens_per_second"]), int(usage["completion_tokens"])
        message = answer["choices"][0]["message"]
        first, asked = float(stats.get("time_to_first_token", 0.0)), int(usage.get("prompt_tokens", 0))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise _no_statistics(url) from None

    def draft_count(name: str) -> int | None:
        value = usage.get(name, stats.get(name))
        return int(value) if isinstance(value, int | float) else None

    return _completion(
        f"{message.get('reasoning_content') or ''}{message.get('content') or ''}",
        asked,
        first,
        count,
        rate,
        draft_count("total_draft_tokens_count"),
        draft_count("accepted_draft_tokens_count"),
    )


def _no_statistics(url: str) -> EngineError:
    return EngineError(f"{url} answered without statistics.", "Update LM Studio to 0.3.9 or newer.")


def _completion(
    text: str, asked: int, first: float, count: int, rate: float, drafted: int | None, accepted: int | None
) -> Completion:
    """An answer from LM Studio's statistics: time to the first token [s], tokens, tokens per second, draft counts."""
    return Completion(
        text=text,
        tokens=None,
        prompt_tokens=asked,
        cached_tokens=0,
        prompt_ms=1000 * first,
        predicted=count,
        # tokens_per_second leaves the first token out, as llama.cpp does.
        predicted_ms=(count - 1) / rate * 1000 if rate > 0 else 0.0,
        drafted=drafted,
        accepted=accepted,
    )


# ---- the SDK


@contextmanager
def _connected(client: Client, target: str, draft: str, api_key: str | None) -> Iterator[_Sdk]:
    """The SDK's connection; afterwards its sockets are closed and its thread has ended."""
    import lmstudio

    for name in _LOGGERS:
        logging.getLogger(name).addHandler(logging.NullHandler())
    identity = _identity(api_key)

    class Sdk(lmstudio.Client):
        # Release 1.5 takes no token; 1.6 takes one and makes this message of it.
        def _create_auth_message(self, api_token: str | None = None) -> Any:
            return self._format_auth_message(*identity)

    before = lmstudio.get_sync_api_timeout()
    lmstudio.set_sync_api_timeout(_PATIENCE)
    sdk = Sdk(client.url.partition("://")[2])
    try:
        _connect(sdk, client.url, api_key)
        yield _Sdk(client, sdk, target, draft)
    finally:
        lmstudio.set_sync_api_timeout(before)
        with suppress(Exception):  # there may be nobody left to say goodbye to
            sdk.close()
        sdk._ws_thread.join(_GOODBYE)


def _identity(api_key: str | None) -> tuple[str, str] | tuple[()]:
    """The two halves of an API token; empty = be a guest.

    Raises:
        InputError: it is none of LM Studio's tokens.
    """
    if not api_key:
        return ()
    match = _TOKEN.fullmatch(api_key.strip())
    if match is None:
        raise InputError(
            "This API token is none of LM Studio's.",
            "They look like sk-lm-name:secret; LM Studio shows them under Developer, Server Settings.",
        )
    return match[1], match[2]


def _connect(sdk: lmstudio.Client, url: str, api_key: str | None) -> None:
    import lmstudio

    deadline = threading.Timer(_GREETING, sdk._ws_thread.terminate)
    deadline.start()
    try:
        sdk.llm.connect()
    except (lmstudio.LMStudioWebsocketError, ThreadGoneError):
        raise EngineError(
            f"{url} answers, but does not let the SDK of LM Studio connect.",
            "Update LM Studio, and look for a proxy in between that stops WebSockets.",
        ) from None
    except (lmstudio.LMStudioServerError, ValueError):
        # 1.5 fails with a ValueError over refusals that are plain text.
        raise _token_error(url, api_key) from None
    finally:
        deadline.cancel()


class _Sdk(LmStudio):
    """Through the SDK: every request has its own draft length."""

    def __init__(self, client: Client, sdk: lmstudio.Client, target: str, draft: str) -> None:
        note = (
            "The draft length was set per request, without a least probability or a least length, whatever LM Studio's "
            "own settings are."
        )
        super().__init__(client, target, draft, None, (note,))
        self._sdk = sdk

    @cached_property
    def _model(self) -> lmstudio.LLM:
        """The loaded target; loads it if need be."""
        model = self._sdk.llm.model(self.target)
        self.build = self._runtime(model.identifier) or self.build
        return model

    def _runtime(self, name: str) -> str | None:
        # The SDK does not tell which engine runs, REST v0 does.
        body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "stream": False}
        with suppress(EngineError, ConnectionError):
            return runtime_of(self.client.json("POST", "/api/v0/chat/completions", body))
        return None

    def ask(self, prompt: Prompt, tokens: int, k: int | None) -> Completion:
        config: lmstudio.LlmPredictionConfigDict = {"maxTokens": tokens, "temperature": 0.0}
        if k is not None:
            config["draftModel"] = self.draft
            config["speculativeDecodingNumDraftTokensExact"] = k
            config["speculativeDecodingMinDraftLengthToConsider"] = 0
            config["speculativeDecodingMinContinueDraftingProbability"] = 0.0
        with _errors(self.client.url, self.target):
            answer = self._model.complete if prompt.raw else self._model.respond
            result = answer(prompt.prompt, config=config)
        stats = result.stats
        if stats.stop_reason in _UNFINISHED:
            raise EngineError(
                f"{self.label} ended a request early: {stats.stop_reason}.", "Leave it alone while it is measured."
            )
        if stats.tokens_per_second is None or stats.predicted_tokens_count is None:
            raise _no_statistics(self.client.url)
        return _completion(
            result.content,
            stats.prompt_tokens_count or 0,
            stats.time_to_first_token_sec or 0.0,
            stats.predicted_tokens_count,
            stats.tokens_per_second,
            stats.total_draft_tokens_count,
            stats.accepted_draft_tokens_count,
        )


@contextmanager
def _errors(url: str, target: str) -> Iterator[None]:
    """What goes wrong inside the SDK, as one sentence."""
    import lmstudio

    try:
        with warnings.catch_warnings():
            # A newer LM Studio sends messages the SDK does not know; they are not about results.
            warnings.simplefilter("ignore", lmstudio.LMStudioUnknownMessageWarning)
            yield
    except lmstudio.LMStudioTimeoutError:
        raise EngineError(
            f"{url} was silent for {_PATIENCE:.0f} s.", "Look at LM Studio's log; a smaller model may help."
        ) from None
    except lmstudio.LMStudioModelNotFoundError:
        raise InputError(f"LM Studio cannot find the model {clean(target)}.", "`lms ls` shows the keys.") from None
    except lmstudio.LMStudioWebsocketError:
        # Its own text would repeat the prompt.
        raise ConnectionError(f"{url} broke the connection off") from None
    except (lmstudio.LMStudioRuntimeError, lmstudio.LMStudioChannelClosedError):
        raise EngineError(f"{url} closed a request without an answer.", "Look at LM Studio's log.") from None
    except lmstudio.LMStudioServerError as error:
        raise EngineError(f"{url} refused: {_words(error)}.", "Try the same pair in LM Studio's own chat.") from None
    except Exception as error:  # the SDK hands errors of its own parts on as they are
        shown = clean(" ".join(f"{type(error).__name__}: {error}".split()), 300)
        raise EngineError(
            f"The SDK of LM Studio failed: {shown}", "Update both: LM Studio and the Python package lmstudio."
        ) from None


def _words(error: lmstudio.LMStudioServerError) -> str:
    """What LM Studio said, on one line."""
    details = error.server_error
    parts = [details.root_title or details.title, details.cause] if details is not None else [error]
    return clean(": ".join(" ".join(str(p).split()).rstrip(".") for p in parts if p), 300)
