"""The same decision as entries for other programs: LM Studio, llama-swap, Jan, LocalAI, Lemonade, Docker, vLLM, SGLang.

Field names are those of each program's own documentation or source (``source`` of every entry), read in November 2026.
What a program has no field for is said (``missing``), never silently dropped.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from advisor.advice.launch import (
    ALL_LAYERS,
    BuildFlags,
    ModelPlace,
    Run,
    placeholder,
    server_argv,
)
from advisor.advice.quoting import Shell, default_shell, invisible, join, quote
from advisor.base import Frozen
from advisor.errors import AdvisorError, InputError
from advisor.text import clean

Launcher = Literal["lm-studio", "llama-swap", "jan", "localai", "lemonade", "docker-model-runner", "vllm", "sglang"]
LAUNCHERS: tuple[Launcher, ...] = (
    "lm-studio", "llama-swap", "jan", "localai", "lemonade", "docker-model-runner", "vllm", "sglang",
)  # fmt: skip


class LmStudioSettings(Frozen):
    """The values to set in LM Studio; ``None`` where the setting does not apply."""

    draft_model: str | None
    """Model to choose as draft; None with MTP, which is inside the target."""
    mtp: bool
    max_draft_tokens: int
    min_draft_tokens: int
    draft_probability: float
    config: dict[str, Any]
    """The same as LM Studio's configuration keys, for its SDKs and preset files."""


class Entry(Frozen):
    """One launcher's configuration of a run."""

    launcher: Launcher
    possible: bool
    """Whether this launcher can run the recommendation at all."""
    where: str
    """File, screen or terminal the content belongs in."""
    format: Literal["settings", "yaml", "json", "command"]
    content: str | None = None
    missing: tuple[str, ...] = ()
    """What the recommendation asks for and this launcher has no field for."""
    notes: tuple[str, ...] = ()
    source: str
    """Where its field names come from."""
    lm_studio: LmStudioSettings | None = None


def entries(run: Run, build: BuildFlags | None = None, shell: Shell | None = None) -> tuple[Entry, ...]:
    """All launchers' entries for ``run``, in a fixed order; impossible ones say why."""
    shell = shell or default_shell()
    build = build or BuildFlags()
    makers: dict[Launcher, Callable[[], Entry]] = {
        "lm-studio": lambda: lm_studio(run),
        "llama-swap": lambda: llama_swap(run, build, shell),
        "jan": lambda: jan(run),
        "localai": lambda: localai(run),
        "lemonade": lambda: lemonade(run, build),
        "docker-model-runner": lambda: docker_model_runner(run, shell),
        "vllm": lambda: vllm(run),
        "sglang": lambda: sglang(run),
    }
    return tuple(makers[name]() for name in LAUNCHERS)


def _no(launcher: Launcher, reason: str, where: str, form: Literal["settings", "yaml", "json", "command"]) -> Entry:
    return Entry(
        launcher=launcher, possible=False, where=where, format=form, missing=(reason,), source=_SOURCES[launcher]
    )


_SOURCES: dict[Launcher, str] = {
    "lm-studio": "lmstudio-js configuration schema (speculativeDecoding) and LM Studio docs",
    "llama-swap": "mostlygeek/llama-swap config.example.yaml",
    "jan": "janhq/jan extensions/llamacpp-extension/src/preset.ts",
    "localai": "LocalAI docs, Model Configuration, Speculative Decoding",
    "lemonade": "Lemonade docs, recipe_options.json and POST /v1/load",
    "docker-model-runner": "docker/model-runner, docker model configure",
    "vllm": "vLLM docs, --speculative-config schema",
    "sglang": "SGLang docs, Speculative Decoding",
}


def slug(name: str) -> str:
    """A model id made of letters, digits, dots, dashes and underscores, safe in every configuration format."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix(".gguf")).strip("-.")
    return text or "model"


def yaml_string(text: str) -> str:
    """``text`` as a double-quoted YAML scalar of printable characters."""
    out = []
    for c in text:
        if c in '"\\':
            out.append("\\" + c)
        elif not invisible(c):
            out.append(c)
        elif 0xD800 <= ord(c) < 0xE000:
            raise InputError("A file name that is not valid Unicode cannot be written in YAML.", "Rename the file.")
        else:
            out.append(f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\U{ord(c):08x}")
    return '"' + "".join(out) + '"'


def to_yaml(value: Mapping[str, Any], indent: int = 0) -> str:
    """Nested mappings, lists and scalars as block YAML; every string is quoted, so none can be read as markup."""
    lines: list[str] = []
    pad = " " * indent
    for key, item in value.items():
        name = key if re.match(r"[A-Za-z_][A-Za-z0-9_-]*\Z", key) else yaml_string(key)
        if isinstance(item, Mapping):
            lines += [f"{pad}{name}:", to_yaml(item, indent + 2)]
        elif isinstance(item, (list, tuple)):
            lines += [f"{pad}{name}:", *(f"{pad}  - {_yaml_scalar(x)}" for x in item)]
        else:
            lines.append(f"{pad}{name}: {_yaml_scalar(item)}")
    return "\n".join(lines)


def _yaml_scalar(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    return yaml_string(item) if isinstance(item, str) else f"{item:g}" if isinstance(item, float) else str(item)


def to_json(value: Any) -> str:
    """Indented JSON of printable characters."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if not any(invisible(c) and c != "\n" for c in text) else json.dumps(value, indent=2)


def _path(place: ModelPlace) -> str:
    return place.path if place.kind == "file" and place.path else placeholder(place)


def _fetch_notes(run: Run) -> tuple[str, ...]:
    return tuple(
        f"Get {p.repo or p.name} first and put its path in place of {placeholder(p)}."
        for p in (run.target, run.draft)
        if p is not None and p.kind != "file"
    )


def lm_studio(run: Run) -> Entry:
    """The settings of LM Studio's *Speculative Decoding* section, and the same as configuration keys."""
    where = "LM Studio: load the model, right sidebar, Speculative Decoding (Power User mode or higher)"
    missing: list[str] = []
    if run.ngram_methods:
        missing.append("n-gram drafting: LM Studio has no setting for it.")
    method = run.draft_method
    if method not in (None, "draft-simple", "draft-mtp"):
        missing.append(f"{method}: LM Studio attaches only ordinary draft models and MTP layers.")
    if method == "draft-mtp" and run.draft is not None:
        missing.append("A separate MTP or assistant file cannot be attached (lmstudio-bug-tracker #2244).")
    if run.setup.placement.rpc:
        missing.append("RPC hosts.")
    possible = not run.methods or (
        method in ("draft-simple", "draft-mtp") and not (method == "draft-mtp" and run.draft)
    )
    if run.setup.placement.rpc:
        possible = False
    settings = None
    content = None
    if possible and method is None:
        content = "Speculative decoding: off (no draft model, MTP off)."
        settings = LmStudioSettings(
            draft_model=None, mtp=False, max_draft_tokens=0, min_draft_tokens=0, draft_probability=0.0,
            config={"llm.prediction.speculativeDecoding.draftModel": ""},
        )  # fmt: skip
    elif possible:
        settings = _lm_studio_settings(run)
        first = "MTP: on" if settings.mtp else f"Draft model: {clean(settings.draft_model or '')}"
        content = "\n".join(
            (
                first,
                f"Max draft tokens: {settings.max_draft_tokens}",
                f"Min draft tokens: {settings.min_draft_tokens}",
                f"Draft probability: {settings.draft_probability:g}",
            )
        )
    notes: list[str] = []
    if possible and run.draft is not None:
        notes += [
            "LM Studio must list the draft too: put its file into LM Studio's models folder.",
            'Through the API name the draft with "draft_model" in the request (draftModel in the SDKs).',
        ]
    if possible and method == "draft-mtp":
        notes.append("MTP needs LM Studio 0.4.14 or newer and is set when the model is loaded, not per request.")
    return Entry(
        launcher="lm-studio", possible=possible, where=where, format="settings", content=content,
        missing=tuple(missing), notes=tuple(notes), source=_SOURCES["lm-studio"], lm_studio=settings,
    )  # fmt: skip


def _lm_studio_settings(run: Run) -> LmStudioSettings:
    mtp = run.draft_method == "draft-mtp"
    if mtp:
        config: dict[str, Any] = {
            "llm.load.llama.speculativeDecoding.draftMtp": True,
            "llm.load.llama.speculativeDecoding.draftMtpMaxTokens": run.draft_max,
            "llm.load.llama.speculativeDecoding.draftMtpMinTokens": run.draft_min,
        }
    else:
        config = {
            "llm.prediction.speculativeDecoding.draftModel": run.draft.name if run.draft else "",
            "llm.prediction.speculativeDecoding.maxTokensToDraft": run.draft_max,
            "llm.prediction.speculativeDecoding.minDraftLengthToConsider": run.draft_min,
            "llm.prediction.speculativeDecoding.minContinueDraftingProbability": run.p_min,
        }
    return LmStudioSettings(
        draft_model=None if mtp or run.draft is None else run.draft.name,
        mtp=mtp,
        max_draft_tokens=run.draft_max,
        min_draft_tokens=run.draft_min,
        draft_probability=run.p_min,
        config=config,
    )


def llama_swap(run: Run, build: BuildFlags, shell: Shell) -> Entry:
    """A ``models:`` entry of llama-swap's config.yaml: the whole command, so nothing is missing."""
    where = "llama-swap: config.yaml"
    try:
        argv = server_argv(run, build)
        for argument in argv:
            if "${" in argument:
                raise InputError("llama-swap would expand the ${...} in this file name.", "Rename the file.")
            if any(invisible(c) for c in argument):
                raise InputError("llama-swap cannot be given a file name with control characters.", "Rename the file.")
        # Its own splitter follows POSIX rules, and those of the C runtime on Windows.
        words = [quote(a, "posix") for a in argv] if shell == "posix" else [subprocess.list2cmdline([a]) for a in argv]
    except AdvisorError as error:
        return _no("llama-swap", str(error), where, "yaml")
    line = " ".join([*words, "--port", "${PORT}"])
    content = to_yaml({"models": {slug(run.target.name): {"cmd": line}}})
    return Entry(
        launcher="llama-swap", possible=True, where=where, format="yaml", content=content, notes=_fetch_notes(run),
        source=_SOURCES["llama-swap"],
    )  # fmt: skip


def jan(run: Run) -> Entry:
    """Fields of Jan's ``model.yml``; it knows MTP and the drafter heads, not ordinary drafts or n-grams."""
    where = f"Jan: <data folder>/llamacpp/models/{slug(run.target.name)}/model.yml"
    missing: list[str] = []
    method = run.draft_method
    if method == "draft-simple":
        return _no("jan", "An ordinary draft model: model.yml has only MTP, EAGLE-3, DFlash and DSpark.", where, "yaml")
    if run.ngram_methods:
        missing.append("n-gram methods")
        if method is None:
            return _no("jan", "n-gram methods: model.yml has no field for them.", where, "yaml")
    if run.setup.placement.rpc:
        return _no("jan", "RPC hosts: model.yml has no field for them.", where, "yaml")
    fields: dict[str, Any] = {"model_path": _path(run.target), "ctx_size": run.total_context}
    if run.setup.parallel > 1:
        fields["parallel"] = run.setup.parallel
    place = run.setup.placement
    if place.gpu_layers is not None:
        fields["n_gpu_layers"] = place.gpu_layers
    if place.cpu_moe:
        fields["cpu_moe"] = True
    elif place.cpu_moe_layers:
        fields["n_cpu_moe"] = place.cpu_moe_layers
    if run.setup.cache_type_k != "f16":
        fields["cache_type_k"] = run.setup.cache_type_k
    if run.setup.cache_type_v != "f16":
        fields["cache_type_v"] = run.setup.cache_type_v
    if method is not None:
        fields["mtp"] = True
        fields["spec_type"] = method
        if run.draft is not None:
            fields["mtp_model_path"] = _path(run.draft)
        else:
            fields["mtp_layers"] = 1
        fields |= {
            "spec_draft_n_max": run.draft_max, "spec_draft_n_min": run.draft_min, "spec_draft_p_min": run.p_min,
        }  # fmt: skip
    notes = ("Jan keeps two extra slots for its own requests, so its memory need is a little higher.",)
    return _entry("jan", where, "yaml", lambda: to_yaml(fields), missing, (*notes, *_fetch_notes(run)))


def localai(run: Run) -> Entry:
    """A LocalAI model file: ``draft_model``, ``n_draft`` and ``options``."""
    where = f"LocalAI: models/{slug(run.target.name)}.yaml (paths are relative to the models folder)"
    options: list[str] = []
    if run.methods:
        options.append("spec_type:" + ",".join(run.ordered))
    method = run.draft_method
    if method is not None:
        options += [f"spec_n_max:{run.draft_max}", f"spec_n_min:{run.draft_min}", f"spec_p_min:{run.p_min:g}"]
    if run.draft is not None:
        options.append(f"draft_gpu_layers:{0 if run.setup.placement.draft_device == 'host' else 99}")
    for ngram in run.ngram_methods:
        options += _localai_ngram(ngram, run, alone=method is None)
    if not run.methods:
        options.append("spec_type:none")  # LocalAI switches MTP on by itself when the file has it
    options.append(f"parallel:{run.setup.parallel}")
    missing: list[str] = []
    place = run.setup.placement
    if place.rpc:
        missing.append("RPC hosts: LocalAI distributes work by its own worker commands.")
    if place.cpu_moe or place.cpu_moe_layers:
        missing.append("Experts on the CPU: only through override_tensor with your own pattern.")
    fields: dict[str, Any] = {
        "name": slug(run.target.name),
        "backend": "llama-cpp",
        "parameters": {"model": _path(run.target)},
        "context_size": run.total_context,
        "gpu_layers": 0 if run.setup.backend == "cpu" else ALL_LAYERS if place.gpu_layers is None else place.gpu_layers,
    }
    if run.draft is not None:
        fields["draft_model"] = _path(run.draft)
    if run.setup.cache_type_k != "f16":
        fields["cache_type_k"] = run.setup.cache_type_k
    if run.setup.cache_type_v != "f16":
        fields["cache_type_v"] = run.setup.cache_type_v
    fields["options"] = options
    return _entry("localai", where, "yaml", lambda: to_yaml(fields), missing, _fetch_notes(run))


def _localai_ngram(method: str, run: Run, alone: bool) -> list[str]:
    options: list[str] = []
    if method == "ngram-mod":
        if run.ngram_match:
            options.append(f"spec_ngram_mod_n_match:{run.ngram_match}")
        if run.ngram_max:
            options += [f"spec_ngram_mod_n_min:{min(run.ngram_max, 48)}", f"spec_ngram_mod_n_max:{run.ngram_max}"]
    elif method != "ngram-cache":
        stem = "spec_ngram" if method == "ngram-simple" else "spec_" + method.replace("-", "_")
        if run.ngram_match:
            options.append(f"{stem}_size_n:{run.ngram_match}")
        if run.ngram_max:
            options.append(f"{stem}_size_m:{run.ngram_max}")
    if run.ngram_max and alone:
        options.append(f"spec_n_max:{run.ngram_max}")
    return options


_LEMONADE_OWN = {"-m", "-hf", "--port", "--host", "-c", "-ngl", "--metrics"}
"""Options Lemonade sets itself and refuses in ``llamacpp_args``, each with a value except ``--metrics``."""


def lemonade(run: Run, build: BuildFlags) -> Entry:
    """A ``recipe_options.json`` entry of Lemonade: everything but the options it keeps for itself."""
    where = "Lemonade: recipe_options.json (key: the model's full name as `lemonade list` shows it)"
    try:
        argv = list(server_argv(run, build))[len(build.program) :]
        words: list[str] = []
        skip = False
        for argument in argv:
            if skip:
                skip = False
            elif argument in _LEMONADE_OWN:
                skip = argument != "--metrics"
            else:
                words.append(_lemonade_word(argument))
    except AdvisorError as error:
        return _no("lemonade", str(error), where, "json")
    missing = []
    if run.setup.placement.gpu_layers is not None:
        missing.append("-ngl: Lemonade chooses the number of layers on the GPU itself.")
    value = {"user." + slug(run.target.name): {"ctx_size": run.total_context, "llamacpp_args": " ".join(words)}}
    return _entry("lemonade", where, "json", lambda: to_json(value), missing, _fetch_notes(run))


def _lemonade_word(argument: str) -> str:
    """Quoted for Lemonade's splitter, whose older releases know no escapes inside quotes."""
    if re.match(r"[^\s\"'\\]+\Z", argument):
        return argument
    for mark in ('"', "'"):
        if mark not in argument and "\\" not in argument:
            return mark + argument + mark
    if "\\" in argument and not re.search(r"[\s\"']", argument):
        return argument  # Windows path without spaces
    raise InputError("Lemonade cannot be given a file name with both quotes or a backslash and spaces.", "Rename it.")


def docker_model_runner(run: Run, shell: Shell) -> Entry:
    """``docker model configure`` with its three speculative options."""
    where = "terminal (models must have been pulled into Docker Model Runner)"
    method = run.draft_method
    if run.ngram_methods and method is None:
        return _no("docker-model-runner", "n-gram methods: there is no option for them.", where, "command")
    if method is not None and method != "draft-simple":
        return _no("docker-model-runner", f"{method}: only ordinary draft models can be set.", where, "command")
    notes = [
        "Releases before June 2026 pass option names that llama.cpp has removed (docker/model-runner #956): check "
        'its log for "draft acceptance".'
    ]
    missing = []
    if run.ngram_methods:
        missing.append("n-gram methods")
    place = run.setup.placement
    if place.rpc:
        return _no("docker-model-runner", "RPC hosts: there is no option for them.", where, "command")
    if place.gpu_layers is not None or place.cpu_moe or place.cpu_moe_layers:
        missing.append("Partial offload: it always puts every layer on the GPU.")
    if run.p_min:
        notes.append("p-min is what its --speculative-min-acceptance-rate becomes for llama.cpp.")

    def reference(p: ModelPlace) -> str:
        return f"hf.co/{p.repo}:{p.tag}" if p.repo and p.tag else f"hf.co/{p.repo}" if p.repo else f"ai/{slug(p.name)}"

    argv = ["docker", "model", "configure", f"--context-size={run.total_context}"]
    if run.draft is not None:
        argv += [
            f"--speculative-draft-model={reference(run.draft)}",
            f"--speculative-num-tokens={run.draft_max}",
            f"--speculative-min-acceptance-rate={run.p_min:g}",
        ]
    argv.append(reference(run.target))
    if any(p is not None and not p.repo for p in (run.target, run.draft)):
        notes.append("Put in the names under which `docker model ls` lists the two models.")
    return _entry("docker-model-runner", where, "command", lambda: join(argv, shell), missing, notes)


def _speculation_for_servers(run: Run) -> str | None:
    """Why neither vLLM nor SGLang can take over this run at all, or None."""
    if run.target.original is None:
        return "The repository of the unquantised weights is not known, and this engine loads those, not GGUF files."
    if run.draft is not None and run.draft.original is None and run.draft.repo is None:
        return "No Hub repository of the draft is known."
    if run.setup.backend not in ("cuda", "rocm"):
        return f"It does not run on {run.setup.backend}."
    return None


_OTHER_ENGINE = "The prediction is for llama.cpp; this engine has other kernels, weights and overheads."


def vllm(run: Run) -> Entry:
    """``vllm serve`` with ``--speculative-config``."""
    where = "terminal (Linux)"
    reason = _speculation_for_servers(run)
    if reason:
        return _no("vllm", reason, where, "command")
    method = run.draft_method
    missing: list[str] = []
    config: dict[str, Any] | None = None
    names = {
        "draft-simple": "draft_model", "draft-mtp": "mtp", "draft-eagle3": "eagle3", "draft-dflash": "dflash",
    }  # fmt: skip
    if method is not None and method not in names:
        return _no("vllm", f"{method}: no such method in its documentation.", where, "command")
    if method is not None:
        config = {"method": names[method], "num_speculative_tokens": run.draft_max}
        if run.draft is not None:
            config["model"] = run.draft.original or run.draft.repo
        if run.ngram_methods:
            missing.append("n-gram beside another method")
        if run.p_min:
            missing.append("p-min")
    elif run.ngram_methods:
        config = {
            "method": "ngram", "num_speculative_tokens": run.ngram_max or 8,
            "prompt_lookup_max": run.ngram_match or 5, "prompt_lookup_min": 2,
        }  # fmt: skip
        missing.append("llama.cpp's n-gram maps: vLLM looks the prompt up, a simpler method.")
    argv = ["vllm", "serve", str(run.target.original), "--max-model-len", str(run.context)]
    if config is not None:
        argv += ["--speculative-config", json.dumps(config)]
    return _entry("vllm", where, "command", lambda: join(argv, "posix"), missing, (_OTHER_ENGINE,))


def sglang(run: Run) -> Entry:
    """``sglang.launch_server`` with its speculative options."""
    where = "terminal (Linux)"
    reason = _speculation_for_servers(run)
    if reason:
        return _no("sglang", reason, where, "command")
    method = run.draft_method
    missing: list[str] = []
    argv = [
        "python3", "-m", "sglang.launch_server", "--model-path", str(run.target.original),
        "--context-length", str(run.context),
    ]  # fmt: skip
    names = {
        "draft-simple": "STANDALONE", "draft-mtp": "EAGLE", "draft-eagle3": "EAGLE3", "draft-dflash": "DFLASH",
        "draft-dspark": "DSPARK",
    }  # fmt: skip
    if method is not None:
        argv += ["--speculative-algorithm", names[method]]
        if run.draft is not None:
            argv += ["--speculative-draft-model-path", str(run.draft.original or run.draft.repo)]
        if method == "draft-dspark":
            argv += ["--speculative-dspark-block-size", str(run.draft_max)]
        elif method != "draft-dflash":
            argv += [
                "--speculative-num-steps", str(run.draft_max), "--speculative-eagle-topk", "1",
                "--speculative-num-draft-tokens", str(run.draft_max + 1),
            ]  # fmt: skip
        if run.ngram_methods:
            missing.append("n-gram beside another method")
        if run.p_min:
            missing.append("p-min")
    elif run.ngram_methods:
        if run.setup.backend != "cuda":
            return _no("sglang", "Its n-gram method runs on CUDA only.", where, "command")
        argv += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(run.ngram_max or 12)]
        missing.append("llama.cpp's n-gram maps: SGLang keeps a trie of its own.")
    return _entry("sglang", where, "command", lambda: join(argv, "posix"), missing, (_OTHER_ENGINE,))


def _entry(
    launcher: Launcher,
    where: str,
    form: Literal["settings", "yaml", "json", "command"],
    content: Callable[[], str],
    missing: Sequence[str],
    notes: Sequence[str],
) -> Entry:
    """An entry whose content may turn out not to be writable (odd file names)."""
    try:
        text = content()
    except AdvisorError as error:
        return _no(launcher, str(error), where, form)
    return Entry(
        launcher=launcher, possible=True, where=where, format=form, content=text, missing=tuple(missing),
        notes=tuple(notes), source=_SOURCES[launcher],
    )  # fmt: skip
