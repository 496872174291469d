"""A stand-in for llama-server that behaves, or fails, in one of the ways real ones were seen to.

Run as ``fake_server.py BEHAVIOUR [llama-server arguments]``. Standard library only; no test imports it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HELP = Path(__file__).parent
BEHAVIOUR, ARGUMENTS = sys.argv[1], sys.argv[2:]
OLD = BEHAVIOUR in ("old", "ancient")
STATE = {"requests": 0, "rounds": 0, "drafted": 0, "accepted": 0, "decodes": 0}
K = 3


def option(*names: str) -> str | None:
    for name in names:
        if name in ARGUMENTS:
            return ARGUMENTS[ARGUMENTS.index(name) + 1]
    return None


def die(signum: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signum)
    time.sleep(10)


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def speculating() -> bool:
    if BEHAVIOUR in ("silent", "dropped"):
        return False
    if OLD:
        return option("-md") is not None
    return (option("--spec-type") or "none") != "none"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, value: object, status: int = 200, kind: str = "application/json") -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            if time.monotonic() < READY:
                self.answer({"error": {"message": "Loading model", "code": 503}}, 503)
            else:
                self.answer({"status": "ok"})
        elif self.path == "/v1/models":
            name = "somebody-else" if BEHAVIOUR == "impostor" else option("--alias") or "model"
            self.answer({"data": [{"id": name}]})
        elif self.path == "/props":
            self.answer({"build_info": "b11434-abc", "model_path": option("--model"), "chat_template": "x"})
        elif self.path == "/slots" and BEHAVIOUR != "silent":
            self.answer([{"id": 0, "speculative": speculating()}])
        elif self.path == "/metrics" and not OLD:
            p = "llamacpp:spec_decode_num_"
            lines = [f"{p}drafts_total {STATE['rounds']}", f"{p}draft_tokens_total {STATE['drafted']}"]
            lines += [f"{p}accepted_tokens_total {STATE['accepted']}", f"llamacpp:n_decode_total {STATE['decodes']}"]
            lines += [f'{p}accepted_tokens_per_pos_total{{position="{i}"}} {STATE["rounds"]}' for i in range(2)]
            self.answer("# HELP x\n" + "\n".join(lines) + "\n", kind="text/plain")
        else:
            self.answer({"error": {"message": "not found"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/apply-template":
            self.answer({"prompt": f"<user>{body['messages'][0]['content']}</user>"})
            return
        if self.path != "/completion":
            self.answer({"error": {"message": "not found"}}, 404)
            return
        STATE["requests"] += 1
        if BEHAVIOUR == "dies-generating" and STATE["requests"] > 1:
            log('ggml-backend.cpp:1: GGML_ASSERT(t_layer_inp[il] != nullptr && "layer input tensor is null") failed')
            die(signal.SIGABRT)
        if BEHAVIOUR == "no-timings":
            self.answer({"content": "hello"})
            return
        if BEHAVIOUR == "html":
            self.answer("<html>gateway</html>", kind="text/html")
            return
        self.answer(completion(body))


def completion(body: dict[str, object]) -> dict[str, object]:
    """Plain decoding takes 10 ms per token; a round of three drafts, two of them right, takes 24 ms for 3 tokens."""
    n = int(str(body["n_predict"]))
    first = sum(str(body["prompt"]).encode()) % 7
    tokens = [first + i % 5 for i in range(n)]
    timings: dict[str, object] = {"cache_n": 0, "prompt_n": 20, "prompt_ms": 50.0, "predicted_n": n}
    STATE["decodes"] += n
    wobble = 1 + 0.01 * (STATE["requests"] % 3)
    if speculating():
        if BEHAVIOUR == "diverges":
            tokens[4] = 99
        rounds = (n - 1) // 3
        rest = n - 1 - 3 * rounds
        timings["predicted_ms"] = (rounds * 24.0 + rest * 10.0) * wobble
        timings["draft_n"], timings["draft_n_accepted"] = 3 * rounds, 2 * rounds
        STATE["rounds"] += rounds
        STATE["drafted"] += 3 * rounds
        STATE["accepted"] += 2 * rounds
    else:
        timings["predicted_ms"] = (n - 1) * 10.0 * wobble
    return {"content": " ".join(map(str, tokens)), "tokens": tokens, "timings": timings}


def main() -> int:
    if "--help" in ARGUMENTS:
        if BEHAVIOUR == "illegal-at-help":
            die(signal.SIGILL)
        if BEHAVIOUR == "not-llama":
            print("usage: something else")
            return 0
        print((HELP / f"{'help_old' if OLD else 'help_new'}.txt").read_text())
        return 0
    if "--version" in ARGUMENTS:
        log("version: 5163 (8cf427ff)" if OLD else "version: 0.6.0-dev (build 11434, commit unknown)")
        log("built with GNU 12.2.0 for Linux x86_64")
        return 0
    if "--list-devices" in ARGUMENTS:
        print("Available devices:\n  CUDA0: NVIDIA GeForce RTX 3090 (24247 MiB, 23000 MiB free)")
        return 0
    unknown = {"old": ["--spec-type", "--spec-draft-n-max"], "new": ["--draft-max"]}
    for flag in unknown.get("old" if OLD else "new", []):
        if flag in ARGUMENTS:
            log(f"error: invalid argument: {flag}")
            return 1
    if any(name.startswith("LLAMA_ARG") for name in os.environ):
        log("error: the environment reached the engine")
        return 1
    if os.path.exists(os.path.join(os.environ.get("XDG_CONFIG_HOME", "/"), "llama.cpp")):
        log("error: the user's configuration reached the engine")
        return 1
    log("main: loading model")
    if BEHAVIOUR == "illegal":
        die(signal.SIGILL)
    if BEHAVIOUR == "out-of-memory":
        log("alloc_buffer: allocating 70000.00 MiB on device 0: cudaMalloc failed: out of memory")
        log("llama_model_load: error loading model: unable to allocate CUDA0 buffer")
        return 1
    if BEHAVIOUR == "killed":
        die(signal.SIGKILL)
    if BEHAVIOUR == "abort":
        log("GGML_ASSERT(n_expert_used_max > 0) failed")
        die(signal.SIGABRT)
    if BEHAVIOUR == "missing-library":
        log("llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object file")
        return 127
    if BEHAVIOUR == "refused":
        log("llama_model_load: error loading model: unknown model architecture: 'qwen9'")
        return 1
    if BEHAVIOUR == "stuck":
        threading.Event().wait()
    if BEHAVIOUR == "port-taken":
        log("start: couldn't bind HTTP server socket, hostname: 127.0.0.1")
        return 1
    if BEHAVIOUR == "dropped":
        log("E srv load_model: the target and draft vocabs are not compatible")
    server = ThreadingHTTPServer(("127.0.0.1", int(option("--port") or 0)), Handler)
    log(f"main: server is listening on http://127.0.0.1:{server.server_port}")
    server.serve_forever()
    return 0


READY = time.monotonic() + (0.3 if BEHAVIOUR == "slow" else 0.0)
sys.exit(main())
