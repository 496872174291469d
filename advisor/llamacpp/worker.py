"""The child process of the embedded engine: serves one model until it is ended. Run by path, never imported.

``worker.py OPTIONS_JSON`` serves; ``worker.py devices`` lists accelerators.
"""

import json
import os
import sys
import threading


def serve(options: dict) -> None:  # type: ignore[type-arg]  # a script outside the package's types
    """Start the server and tell the address on standard output."""
    import xllamacpp as x

    kinds = {k.removeprefix("COMMON_SPECULATIVE_TYPE_").lower().replace("_", "-"): v
             for k, v in x.common_speculative_type.__members__.items()}  # fmt: skip
    cache_types = {k.removeprefix("GGML_TYPE_").lower(): v for k, v in x.ggml_type.__members__.items()}
    params = x.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["alias"]} if isinstance(params.model_alias, set) else options["alias"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = options["context"]
    params.n_parallel = 1
    params.cache_ram_mib = 0
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.offline = True
    params.verbosity = 3
    params.warmup = options["warmup"]
    if options["threads"] is not None:
        params.cpuparams.n_threads = options["threads"]
    for name, field in (("batch", "n_batch"), ("ubatch", "n_ubatch"), ("gpu_layers", "n_gpu_layers"),
                        ("context_checkpoints", "n_ctx_checkpoints")):  # fmt: skip
        if options[name] is not None:
            setattr(params, field, options[name])
    for name in ("cache_type_k", "cache_type_v"):
        if options[name] is not None:
            setattr(params, name, cache_types[options[name].lower()])
    method, k = options["method"], options["draft_max"]
    spec = params.speculative
    if method != "none":
        spec.types = [kinds[method]]
        if options["draft"]:
            spec.draft.mparams.path = options["draft"]
        for name, field in (("draft_min", "n_min"), ("p_min", "p_min"), ("draft_gpu_layers", "n_gpu_layers")):
            if options[name] is not None:
                setattr(spec.draft, field, options[name])
        match, minimum = options["ngram_match"], options["ngram_minimum"]
        if method == "ngram-mod":
            for value, field in ((k, "n_max"), (minimum, "n_min"), (match, "n_match")):
                if value is not None:
                    setattr(spec.ngram_mod, field, value)
        elif method in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
            table = getattr(spec, method.replace("-", "_"))
            for value, field in ((k, "size_m"), (match, "size_n")):
                if value is not None:
                    setattr(table, field, value)
        elif method != "ngram-cache" and k is not None:
            spec.draft.n_max = k
        if options["synth_rates"]:
            spec.synth_rates = options["synth_rates"]
    server = x.Server(params)
    # One write with its own line breaks: the engine logs to the same pipe, in pieces of lines.
    os.write(1, ("\nadvisor-embedded: " + json.dumps({"address": server.listening_address}) + "\n").encode())
    threading.Event().wait()


def devices() -> None:
    """Print what the wheel computes on besides the CPU."""
    import xllamacpp as x

    rows = []
    for device in x.get_device_info():
        if device["type"].name.endswith("_CPU"):
            continue
        rows.append({"name": device["name"], "description": device["description"],
                     "memory": device["memory_total"] or None, "free": device["memory_free"] or None})  # fmt: skip
    print(json.dumps(rows))


if __name__ == "__main__":
    if sys.argv[1] == "devices":
        devices()
    else:
        serve(json.loads(sys.argv[1]))
