"""A stand-in for LM Studio: REST v1 and v0 and the SDK's WebSocket protocol on one port, as LM Studio has it.

50 tok/s plain; with a draft model faster by its draft length (best at 3), which is accepted to 60 %. The first argument
says how it misbehaves. ``GET /asked`` lists what was generated so far.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

BEHAVIOUR = sys.argv[1]
TOKEN = "sk-lm-fakefake:notarealtokenatall00"
RATES = {1: 60.0, 3: 80.0, 8: 55.0}
REFUSAL = {"title": "Draft model is not compatible.", "cause": "Vocabularies\n differ\x1b[31m", "stack": "at x.ts:1"}
INFO = {
    "type": "llm",
    "modelKey": "big-7b",
    "format": "gguf",
    "displayName": "Big",
    "path": "maker/big-7b.gguf",
    "sizeBytes": 1,
    "vision": False,
    "trainedForToolUse": False,
    "maxContextLength": 4096,
}
ASKED: list[dict[str, object]] = []


def generated(route: str, tokens: int, drafting: bool, k: int | None, **more: object) -> tuple[int, float, int | None]:
    """Notes a request: tokens, tokens per second, drafted tokens."""
    ASKED.append({"route": route, "tokens": tokens, "drafting": drafting, "k": k, **more})
    if BEHAVIOUR == "dies" and len(ASKED) > 4:
        os._exit(1)
    drafts = (drafting and BEHAVIOUR != "ignores-draft") or BEHAVIOUR == "always-drafts"
    return tokens, RATES[k or 3] if drafts else 50.0, tokens if drafts else None


class Rest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self) -> bool:
        if BEHAVIOUR == "token" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.answer({"error": {"message": "An LM Studio API token is required"}}, 401)
            return False
        return True

    def do_GET(self) -> None:
        if self.path == "/asked":
            self.answer(ASKED)
        elif self.allowed():
            if self.path == "/api/v1/models" and BEHAVIOUR != "old":
                big = {"type": "llm", "key": "big-7b", "loaded_instances": [{"id": "big-7b", "config": {}}]}
                small = {"type": "llm", "key": "small-0.5b", "loaded_instances": []}
                embed = {"type": "embedding", "key": "embed", "loaded_instances": [{"id": "embed"}]}
                self.answer({"models": [big, small, embed]})
            elif self.path == "/api/v0/models":
                big = {"id": "big-7b", "type": "llm", "state": "loaded"}
                small = {"id": "small-0.5b", "type": "llm", "state": "not-loaded"}
                embed = {"id": "embed", "type": "embeddings", "state": "loaded"}
                self.answer({"object": "list", "data": [big, small, embed]})
            else:  # LM Studio answers 200 here
                self.answer({"error": f"Unexpected endpoint or method. (GET {self.path})"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        if body["max_tokens"] == 1:  # only the runtime is wanted
            n, rate, drafted = 1, 50.0, None
        else:
            n, rate, drafted = generated("v0", body["max_tokens"], "draft_model" in body, None)
        usage: dict[str, object] = {"prompt_tokens": 10, "completion_tokens": n, "total_tokens": n + 10}
        if drafted is not None:
            usage |= {"total_draft_tokens_count": drafted, "accepted_draft_tokens_count": round(0.6 * drafted)}
        answer = {
            "choices": [{"message": {"role": "assistant", "content": "the same text"}}],
            "usage": usage,
            "stats": {"tokens_per_second": rate, "time_to_first_token": 0.2},
            "runtime": {"name": "llama.cpp-linux-x86_64-vulkan", "version": "2.9.0"},
        }
        if BEHAVIOUR == "no-stats":
            del answer["stats"]
        self.answer(answer)


class Sdk:
    """One WebSocket of the SDK: a handshake, then calls and channels side by side."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.protocol = connection, ServerProtocol()

    def send(self, **message: object) -> None:
        self.protocol.send_text(json.dumps(message).encode())
        self.flush()

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self.connection.sendall(data)

    def messages(self) -> Iterator[dict[str, object]]:
        while data := self.connection.recv(65536):
            self.protocol.receive_data(data)
            for event in self.protocol.events_received():
                if isinstance(event, Request):
                    answer = self.protocol.accept(event)
                    if BEHAVIOUR == "no-websocket" or event.path != "/llm":
                        answer = self.protocol.reject(404, "nothing here")
                    self.protocol.send_response(answer)
                elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                    yield json.loads(event.data)
            self.flush()  # pongs, goodbyes
            if self.protocol.close_expected():
                return

    def serve(self) -> None:
        messages = self.messages()
        who = next(messages, None)
        if who is None:
            return
        assert who["authVersion"] == 1
        if BEHAVIOUR == "stalls":
            next(messages, None)
            return
        known = f"sk-lm-{who['clientIdentifier']}:{who['clientPasskey']}" == TOKEN
        if BEHAVIOUR in ("locked", "locked-in-words") or (BEHAVIOUR == "token" and not known):
            words = "Invalid API token"
            self.send(success=False, error=words if BEHAVIOUR == "locked-in-words" else {"title": words})
            return
        self.send(success=True)
        for message in messages:
            if message["type"] == "channelCreate":
                self.channel(message["channelId"], message["endpoint"], message["creationParameter"])

    def channel(self, number: object, endpoint: object, asked: object) -> None:
        if endpoint == "getOrLoad":
            if BEHAVIOUR == "forgets":
                error = {"title": "No model", "displayData": {"code": "generic.noModelMatchingQuery"}}
                self.send(type="channelError", channelId=number, error=error)
                return
            info = {**INFO, "identifier": "big-7b", "instanceReference": "x", "contextLength": 4096}
            self.send(type="channelSend", channelId=number, message={"type": "alreadyLoaded", "info": info})
        elif BEHAVIOUR == "mute":
            return
        elif BEHAVIOUR != "closes":
            self.predict(number, asked)
        self.send(type="channelClose", channelId=number)

    def predict(self, number: object, asked: object) -> None:
        layers = asked["predictionConfigStack"]["layers"]  # type: ignore[index]
        fields = {f["key"].removeprefix("llm.prediction."): f["value"] for f in layers[0]["config"]["fields"]}
        spec = {key.partition(".")[2]: v for key, v in fields.items() if key.startswith("speculativeDecoding.")}
        draft = spec.pop("draftModel", None)
        assert draft in (None, "small-0.5b")

        def say(**message: object) -> None:
            self.send(type="channelSend", channelId=number, message=message)

        if draft and BEHAVIOUR == "refuses-draft":
            say(type="error", error=REFUSAL)
            return
        n, rate, drafted = generated(
            "sdk",
            fields["maxPredictedTokens"]["value"],
            draft is not None,
            spec.pop("numDraftTokensExact", None),
            temperature=fields["temperature"],
            raw=len(layers) > 1,
            rest=spec,
        )
        say(type="somethingNew")  # the SDK warns of messages it does not know
        say(type="fragment", fragment={"content": "the same text", "tokensCount": n, "containsDrafted": bool(drafted),
                                       "reasoningType": "none"})  # fmt: skip
        stats: dict[str, object] = {
            "stopReason": "modelUnloaded" if BEHAVIOUR == "unloads" else "maxPredictedTokensReached",
            "tokensPerSecond": rate,
            "timeToFirstTokenSec": 0.2,
            "promptTokensCount": 10,
            "predictedTokensCount": n,
        }
        if BEHAVIOUR == "no-stats":
            del stats["tokensPerSecond"]
        if drafted is not None:
            accepted = round(0.6 * drafted)
            stats |= {
                "usedDraftModelKey": "small-0.5b",
                "totalDraftTokensCount": drafted,
                "acceptedDraftTokensCount": accepted,
                "rejectedDraftTokensCount": drafted - accepted,
                "ignoredDraftTokensCount": 0,
            }
        config = {"fields": []}
        say(type="success", stats=stats, modelInfo=INFO, loadModelConfig=config, predictionConfig=config)


class Either(socketserver.BaseRequestHandler):
    """REST or a WebSocket, by the first request on a connection."""

    request: socket.socket

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else every small message waits 40 ms
        head = b""
        while b"\r\n\r\n" not in head:
            head = self.request.recv(65536, socket.MSG_PEEK)
            if not head:
                return
        if b"upgrade: websocket" in head.lower():
            Sdk(self.request).serve()
        else:
            Rest(self.request, self.client_address, self.server)  # type: ignore[arg-type]


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


server = Server(("127.0.0.1", 0), Either)
print(server.server_address[1], flush=True)
server.serve_forever()
