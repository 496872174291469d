"""A llama-server command line in front of the xllamacpp wheel: the real code path of an installed llama.cpp, testable.

Understands the arguments this project passes, in their new spelling, and serves on the port it was given.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

VALUES = {
    "--host", "--port", "--alias", "--model", "--ctx-size", "--parallel", "--cache-ram", "--log-verbosity",
    "--log-colors", "--threads", "--spec-type", "-md", "--spec-draft-n-max",
    "--spec-synth-rates", "--spec-ngram-simple-size-m",
    "--spec-ngram-simple-size-n", "--ctx-checkpoints", "--batch-size", "--ubatch-size",
}  # fmt: skip
SWITCHES = {"--slots", "--metrics", "--offline", "--no-webui", "--no-warmup"}


def main() -> int:
    arguments = sys.argv[1:]
    if "--help" in arguments:
        print((Path(__file__).parent / "help_new.txt").read_text())
        return 0
    if "--version" in arguments:
        print("version: 0.6.0-dev (build 11549, commit unknown)", file=sys.stderr)
        return 0
    if "--list-devices" in arguments:
        print("Available devices:")
        return 0
    given: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if flag in VALUES:
            given[flag] = rest.pop(0)
        elif flag not in SWITCHES:
            print(f"error: invalid argument: {flag}", file=sys.stderr)
            return 1
    import xllamacpp as x

    params = x.CommonParams()
    params.model.path = given["--model"]
    params.model_alias = {given["--alias"]} if isinstance(params.model_alias, set) else given["--alias"]
    params.hostnames, params.port = [given["--host"]], int(given["--port"])
    params.n_ctx, params.n_parallel, params.cache_ram_mib = int(given["--ctx-size"]), 1, 0
    params.endpoint_slots = params.endpoint_metrics = True
    params.verbosity = 3
    if "--threads" in given:
        params.cpuparams.n_threads = int(given["--threads"])
    method = given.get("--spec-type", "none")
    if method != "none":
        kind = "COMMON_SPECULATIVE_TYPE_" + method.upper().replace("-", "_")
        params.speculative.types = [x.common_speculative_type.__members__[kind]]
        params.speculative.draft.mparams.path = given.get("-md", "")
        if "--spec-draft-n-max" in given:
            params.speculative.draft.n_max = int(given["--spec-draft-n-max"])
        if "--spec-ngram-simple-size-m" in given:
            params.speculative.ngram_simple.size_m = int(given["--spec-ngram-simple-size-m"])
            params.speculative.ngram_simple.size_n = int(given["--spec-ngram-simple-size-n"])
        if "--spec-synth-rates" in given:
            params.speculative.synth_rates = [float(r) for r in given["--spec-synth-rates"].split(",")]
    server = x.Server(params)
    threading.Event().wait()
    del server
    return 0


if __name__ == "__main__":
    sys.exit(main())
