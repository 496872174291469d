"""Asking a running llama.cpp server, in its own HTTP language.

Standard library only: one keep-alive connection to a local process needs no more, and measuring wants nothing
in between.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from advisor.base import Frozen
from advisor.errors import EngineError, InputError
from advisor.text import clean


class Completion(Frozen):
    """One generated text with the server's own clock.

    ``prompt_ms`` runs to the first sampled token (time to first token as the server sees it); ``predicted_ms`` from
    there to the last token, so it holds ``predicted - 1`` steps (llama.cpp ``server-common.cpp``).
    ``drafted`` counts every drafted token, also those behind the first rejection; None = the field was absent, which
    is llama.cpp's way of saying that nothing was drafted.
    """

    text: str
    tokens: tuple[int, ...] | None
    prompt_tokens: int
    cached_tokens: int
    prompt_ms: float
    predicted: int
    predicted_ms: float
    drafted: int | None
    accepted: int | None
    truncated: bool = False

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed without the first token (which the prompt pass paid for); None if there was only one."""
        return (self.predicted - 1) / self.predicted_ms * 1000 if self.predicted > 1 and self.predicted_ms > 0 else None


class SpeculationCounters(Frozen):
    """Counters of ``/metrics`` since the server started; ``rounds`` are verifications."""

    rounds: int
    drafted: int
    accepted: int
    positions: tuple[int, ...]
    """How often draft i+1 was accepted."""
    decodes: int


class Client:
    """Speaks to one llama-server.

    Args:
        url: e.g. ``http://127.0.0.1:8080``.
        api_key: bearer token, if the server wants one.
        timeout: longest silence of the server within one request [s].
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{clean(url)} is not an address of a server.", "Use e.g. http://127.0.0.1:8080.")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._parts = parts
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection; the client may be used again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._parts.scheme == "https":
                self._connection = http.client.HTTPSConnection(
                    host, port, timeout=timeout, context=ssl.create_default_context()
                )
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=timeout)
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        self._connection.timeout = timeout
        return self._connection

    def raw(self, method: str, path: str, body: Any = None, timeout: float | None = None) -> tuple[int, bytes]:
        """One exchange: status and body.

        Raises:
            ConnectionError: nobody answers, or the answer broke off.
        """
        data = None if body is None else json.dumps(body).encode()
        fresh = self._connection is None
        try:
            connection = self._connect(timeout or self._timeout)
            connection.request(method, self._prefix + path, body=data, headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not fresh and isinstance(error, http.client.RemoteDisconnected | BrokenPipeError | ConnectionResetError):
                # The server closed an idle keep-alive connection: a new one is not a second attempt at anything.
                return self.raw(method, path, body, timeout)
            raise ConnectionError(f"{self.url} did not answer {path}: {error or type(error).__name__}") from error
        except BaseException:
            # Ctrl-C in the middle of an answer: the rest of it must not be read as the next one.
            self.close()
            raise

    def json(self, method: str, path: str, body: Any = None, timeout: float | None = None) -> Any:
        """One exchange of JSON.

        Raises:
            EngineError: an HTTP error, or something that is not JSON.
            ConnectionError: nobody answers.
        """
        status, data = self.raw(method, path, body, timeout)
        try:
            answer = json.loads(data.decode("utf-8", "replace"))
        except ValueError:
            shown = clean(data[:120].decode("utf-8", "replace"))
            raise EngineError(
                f"{self.url}{path} answered with status {status} and no JSON: {shown}",
                "Is this really a llama-server?",
            ) from None
        if status >= 400:
            error = answer.get("error", answer) if isinstance(answer, dict) else answer
            message = error.get("message", error) if isinstance(error, dict) else error
            raise EngineError(f"{self.url}{path} refused (status {status}): {clean(str(message), 400)}")
        return answer

    def health(self, timeout: float = 2.0) -> str:
        """``ok``, ``loading``, ``refused`` (nobody there yet) or ``error``."""
        try:
            status, _ = self.raw("GET", "/health", timeout=timeout)
        except ConnectionError:
            return "refused"
        return "ok" if status == 200 else "loading" if status == 503 else "error"

    def props(self) -> dict[str, Any]:
        """``/props``: build, model path, alias, chat template."""
        answer = self.json("GET", "/props", timeout=10)
        return answer if isinstance(answer, dict) else {}

    def speculative(self) -> bool | None:
        """Whether slot 0 really speculates; None if this server does not say (``--no-slots``, older builds)."""
        try:
            slots = self.json("GET", "/slots", timeout=10)
            value = slots[0].get("speculative")
        except (EngineError, ConnectionError, LookupError, AttributeError, TypeError):
            return None
        return value if isinstance(value, bool) else None

    def counters(self) -> SpeculationCounters | None:
        """Speculation counters of ``/metrics``; None if not offered."""
        try:
            status, data = self.raw("GET", "/metrics", timeout=10)
        except ConnectionError:
            return None
        if status != 200:
            return None
        values: dict[str, float] = {}
        positions: dict[int, int] = {}
        for line in data.decode("utf-8", "replace").splitlines():
            name, _, value = line.rpartition(" ")
            if not name or line.startswith("#"):
                continue
            try:
                number = float(value)
            except ValueError:
                continue
            if name.startswith("llamacpp:spec_decode_num_accepted_tokens_per_pos_total{"):
                digits = "".join(c for c in name if c.isdigit())
                if digits:
                    positions[int(digits)] = int(number)
            else:
                values[name] = number
        prefix = "llamacpp:spec_decode_num_"
        if f"{prefix}drafts_total" not in values:
            return None
        return SpeculationCounters(
            rounds=int(values[f"{prefix}drafts_total"]),
            drafted=int(values.get(f"{prefix}draft_tokens_total", 0)),
            accepted=int(values.get(f"{prefix}accepted_tokens_total", 0)),
            positions=tuple(positions[i] for i in sorted(positions)),
            decodes=int(values.get("llamacpp:n_decode_total", 0)),
        )

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text as this server would read it as a prompt."""
        answer = self.json("POST", "/tokenize", {"content": text, "add_special": special, "parse_special": True})
        return [int(t) for t in answer.get("tokens", [])]

    def apply_template(self, message: str) -> str | None:
        """The message as the model's chat template renders it; None if the server cannot."""
        try:
            answer = self.json("POST", "/apply-template", {"messages": [{"role": "user", "content": message}]})
        except EngineError:
            return None
        prompt = answer.get("prompt") if isinstance(answer, dict) else None
        return prompt if isinstance(prompt, str) and prompt else None

    def complete(
        self,
        prompt: str | list[int],
        tokens: int,
        *,
        seed: int = 1,
        temperature: float = 0.0,
        cache_prompt: bool = False,
        ignore_eos: bool = False,
        timeout: float | None = None,
    ) -> Completion:
        """Generate at most ``tokens`` tokens, greedily by default.

        Raises:
            EngineError: the server refused, or answered without timings.
            ConnectionError: it went away.
        """
        body = {
            "prompt": prompt,
            "n_predict": tokens,
            "temperature": temperature,
            "seed": seed,
            "cache_prompt": cache_prompt,
            "ignore_eos": ignore_eos,
            "return_tokens": True,
            "stream": False,
        }
        return parse_completion(self.json("POST", "/completion", body, timeout), self.url)


def parse_completion(answer: Any, url: str = "the server") -> Completion:
    """The fields of a ``/completion`` answer that matter here.

    Raises:
        EngineError: no ``timings``: not a llama-server, or one too old to measure with.
    """
    timings = answer.get("timings") if isinstance(answer, dict) else None
    if not isinstance(timings, dict) or "predicted_ms" not in timings:
        raise EngineError(f"{url} answered without timings, so nothing can be measured with it.", "Use llama-server.")
    tokens = answer.get("tokens")
    drafted = timings.get("draft_n")
    accepted = timings.get("draft_n_accepted")
    return Completion(
        text=str(answer.get("content", "")),
        tokens=tuple(int(t) for t in tokens) if isinstance(tokens, list) and tokens else None,
        prompt_tokens=int(timings.get("prompt_n", 0)),
        cached_tokens=int(timings.get("cache_n", 0)),
        prompt_ms=float(timings.get("prompt_ms", 0.0)),
        predicted=int(timings.get("predicted_n", 0)),
        predicted_ms=float(timings["predicted_ms"]),
        drafted=None if drafted is None else int(drafted),
        accepted=None if accepted is None else int(accepted),
        truncated=bool(answer.get("truncated", False)),
    )
