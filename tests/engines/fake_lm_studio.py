"""A stand-in for LM Studio's REST API: 50 tok/s plain, 80 tok/s with a draft model that is accepted to 60 %."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BEHAVIOUR = sys.argv[1]
MODELS = [
    {"id": "big-7b", "type": "llm", "state": "loaded"},
    {"id": "small-0.5b", "type": "llm", "state": "not-loaded"},
    {"id": "embed", "type": "embeddings", "state": "loaded"},
]


class Handler(BaseHTTPRequestHandler):
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
        if BEHAVIOUR == "token" and self.headers.get("Authorization") != "Bearer secret":
            self.answer({"error": {"message": "An LM Studio API token is required"}}, 401)
            return False
        return True

    def do_GET(self) -> None:
        if self.allowed():
            if self.path == "/api/v0/models":
                self.answer({"object": "list", "data": MODELS})
            else:
                self.answer({"error": f"Unexpected endpoint: {self.path}"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return
        n = body["max_tokens"]
        drafting = ("draft_model" in body and BEHAVIOUR != "ignores-draft") or BEHAVIOUR == "always-drafts"
        usage: dict[str, object] = {"prompt_tokens": 10, "completion_tokens": n, "total_tokens": n + 10}
        if drafting:
            usage |= {"total_draft_tokens_count": n, "accepted_draft_tokens_count": round(0.6 * n)}
        rate = 80.0 if drafting else 50.0
        stats = {"tokens_per_second": rate, "time_to_first_token": 0.2, "generation_time": 0.2 + (n - 1) / rate}
        answer = {
            "choices": [{"message": {"role": "assistant", "content": "the same text"}}],
            "usage": usage,
            "stats": stats,
            "runtime": {"name": "llama.cpp-linux-x86_64-vulkan", "version": "2.9.0"},
        }
        if BEHAVIOUR == "no-stats":
            del answer["stats"]
        self.answer(answer)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
