#!/usr/bin/env python3
"""Stands for llama-server in tests: takes its options, writes them down, serves /health, /metrics and /slots."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path to load
-c,    --ctx-size N                     size of the prompt context
-np,   --parallel N                     number of slots
       --metrics                        enable prometheus compatible metrics endpoint
       --host HOST                      ip address to listen
       --port PORT                      port to listen
--spec-default                          use the default speculation
----- speculative params -----

--spec-type none,draft-simple,draft-mtp,ngram-simple,ngram-mod
                                        comma-separated list of types
--spec-draft-n-max N                    number of tokens to draft (default: 3)
"""


def main() -> None:
    argv = sys.argv[1:]
    if "--help" in argv:
        print(HELP)
        return
    if "--version" in argv:
        print("version: 0.6.0-dev (build 11434, commit 0123abc)", file=sys.stderr)
        return
    record = os.environ.get("FAKE_LLAMA_ARGS")
    if record:
        with open(record, "w", encoding="utf-8") as file:
            json.dump(argv, file)
    if os.environ.get("FAKE_LLAMA_FAILS"):
        print("error: invalid argument: --spec-type", file=sys.stderr)
        sys.exit(1)
    tokens = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                tokens[0] += 100
                body = (
                    f"llamacpp:tokens_predicted_total {tokens[0]}\n"
                    f"llamacpp:tokens_predicted_seconds_total {tokens[0] / 50}\n"
                    f"llamacpp:spec_decode_num_draft_tokens_total {tokens[0]}\n"
                    f"llamacpp:spec_decode_num_accepted_tokens_total {tokens[0] * 0.6}\n"
                    f"llamacpp:spec_decode_num_drafts_total {tokens[0] / 3}\n"
                )
            elif self.path == "/slots":
                body = json.dumps([{"id": 0, "speculative": "--spec-type" in argv or "--spec-default" in argv}])
            else:
                body = json.dumps({"status": "ok"})
            data = body.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    port = int(argv[argv.index("--port") + 1])
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as httpd:
        print("main: server is listening", flush=True)
        httpd.serve_forever()


if __name__ == "__main__":
    main()
