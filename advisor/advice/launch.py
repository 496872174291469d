"""From a decision to the exact llama-server command of the user's build.

Everything here is pure: the settings, the models and what the build calls its options come in, arguments come out.
Which options a build has is read elsewhere (``advisor.llamacpp``); :class:`BuildFlags` is all that is needed of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Literal

from advisor.advice.quoting import Shell, default_shell, join, pretty
from advisor.base import Frozen
from advisor.errors import EngineError, InputError
from advisor.hardware.machine import Setup
from advisor.models.description import ModelDescription
from advisor.speculation.prediction import Method

NGRAM_METHODS: tuple[Method, ...] = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
PRIORITY: tuple[Method, ...] = (
    *NGRAM_METHODS, "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark",
)  # fmt: skip
"""Order in which llama.cpp asks its methods; the first that returns a draft wins (common/speculative.cpp)."""

ALL_LAYERS = 999
"""A layer count above every model's: every build takes a number, only newer ones take ``all``."""

# Names of the same method in builds between the n-gram work of early 2026 and the rename of May 2026 (#22964).
_EARLIER_NAMES: dict[str, str] = {"draft-simple": "draft", "draft-eagle3": "eagle3", "draft-mtp": "mtp"}
_DEVICE_PREFIX = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan", "sycl": "SYCL", "opencl": "GPUOpenCL"}


class ModelPlace(Frozen):
    """Where a launcher finds a model: a file on this disk, a Hub repository, or only a name to be fetched first."""

    kind: Literal["file", "hub", "name"]
    name: str
    path: str | None = None
    """Absolute path of the file (of the first shard of a set)."""
    repo: str | None = None
    """``owner/name`` on the Hugging Face Hub."""
    tag: str | None = None
    """Quantisation inside that repository, as in ``-hf repo:tag``."""
    original: str | None = None
    """Repository of the unquantised weights, which vLLM and SGLang load."""
    bytes: int = 0


class BuildFlags(Frozen):
    """What one llama.cpp build calls things; the defaults are those of a current build."""

    program: tuple[str, ...] = ("llama-server",)
    """``("llama", "serve")`` where the installer made one program of all."""
    new_names: bool = True
    """``--spec-draft-n-max`` (since April 2026) instead of ``--draft-max``."""
    spec_types: tuple[str, ...] | None = None
    """Values of ``--spec-type``; empty = the build has no such option and ``-md`` alone switches speculation on;
    None = not read, assume a current build."""
    spec_default: bool = True
    """Whether ``--spec-default`` exists."""
    label: str = "a current llama.cpp"
    """Build as shown to the user."""


class Run(Frozen):
    """One complete way to run a target: what to load, how to draft, where the weights lie."""

    target: ModelPlace
    draft: ModelPlace | None = None
    methods: tuple[Method, ...] = ()
    """Enabled methods; empty = plain decoding. llama.cpp asks them in :data:`PRIORITY` order."""
    draft_max: int = 3
    """Most tokens the draft model, MTP block or head drafts per round."""
    draft_min: int = 0
    p_min: float = 0.0
    ngram_max: int | None = None
    """Most tokens an n-gram method drafts; None = the build's default."""
    ngram_match: int | None = None
    """Tokens that must match; None = the build's default."""
    spec_default: bool = False
    """Ask for llama.cpp's own choice (``ngram-mod`` 24/48/64) by ``--spec-default``."""
    context: int = 4096
    """Tokens each slot must hold."""
    setup: Setup

    @property
    def total_context(self) -> int:
        """What ``-c`` must say: llama.cpp divides it among the slots."""
        return self.context * self.setup.parallel

    @property
    def ordered(self) -> tuple[Method, ...]:
        """The enabled methods in the order llama.cpp asks them."""
        return tuple(m for m in PRIORITY if m in self.methods)

    @property
    def draft_method(self) -> Method | None:
        """The enabled method that is not an n-gram method."""
        return next((m for m in self.ordered if m not in NGRAM_METHODS), None)

    @property
    def ngram_methods(self) -> tuple[Method, ...]:
        """The enabled n-gram methods."""
        return tuple(m for m in self.ordered if m in NGRAM_METHODS)


class Command(Frozen):
    """A command ready to run, and the same quoted for a shell."""

    argv: tuple[str, ...]
    shell: Shell
    line: str | None
    """Ready to paste; None if the shell cannot express it (``notes`` say why)."""
    text: str | None
    """The same over several lines."""
    build: str
    ready: bool
    """False if something must be downloaded or filled in first (``notes``)."""
    notes: tuple[str, ...] = ()


def place_of(model: ModelDescription, original: str | None = None) -> ModelPlace:
    """Where to load ``model`` from, by how it was described. ``original`` is its unquantised repository, if known."""
    if model.source == "gguf":
        path = str(_absolute(model.files[0] if model.files else model.reference))
        return ModelPlace(kind="file", name=model.name, path=path, original=original, bytes=model.size_bytes)
    if model.source == "hub-gguf":
        repo, tag = split_hub(model.reference)
        if repo:
            return ModelPlace(
                kind="hub", name=model.name, repo=repo, tag=tag or model.quant, original=original,
                bytes=model.size_bytes,
            )  # fmt: skip
    return ModelPlace(kind="name", name=model.name, tag=model.quant, original=original, bytes=model.size_bytes)


def _absolute(path: str) -> PurePath:
    """The path made absolute against the working directory, links left as they are."""
    import os.path

    return PurePath(os.path.abspath(path))


def split_hub(reference: str) -> tuple[str | None, str | None]:
    """``owner/name`` and tag of a Hub reference such as ``hf:owner/name:Q4_K_M`` or ``owner/name/file.gguf``."""
    text = re.sub(r"\A(hf:(//)?|hf\.co/|https?://(www\.)?(huggingface\.co|hf\.co)/)", "", reference)
    match = re.match(r"\A([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(?:[:@/](.+))?\Z", text)
    if not match:
        return None, None
    rest = match.group(2)
    if rest and rest.lower().endswith(".gguf"):
        rest = rest.rsplit("/", 1)[-1]
        found = re.search(r"(?i)[-.]((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?:-\d{5}-of-\d{5})?\.gguf\Z", rest)
        rest = found.group(1) if found else None
    return match.group(1), rest


def server_argv(
    run: Run,
    build: BuildFlags | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    metrics: bool = False,
) -> tuple[str, ...]:
    """Arguments of llama-server for ``run`` in the vocabulary of ``build``, program name first.

    Args:
        run: what to run.
        build: the build's option names; None = a current build.
        host: address to listen on; None = the build's default.
        port: TCP port; None = the build's default.
        metrics: also switch ``/metrics`` on, which watching needs.

    Raises:
        EngineError: the build cannot do what ``run`` asks (no such method).
        InputError: ``run`` contradicts itself.
    """
    build = build or BuildFlags()
    argv = [*build.program, *model_flags(run.target)]
    argv += speculation_flags(run, build)
    argv += placement_flags(run.setup)
    argv += ["-c", str(run.total_context), "-np", str(run.setup.parallel)]
    argv += cache_flags(run.setup)
    if metrics:
        argv.append("--metrics")
    if host is not None:
        argv += ["--host", host]
    if port is not None:
        argv += ["--port", str(port)]
    return tuple(argv)


def model_flags(place: ModelPlace, draft: bool = False) -> list[str]:
    """``-m FILE`` or ``-hf REPO:TAG`` (``-md`` and ``-hfd`` for a draft)."""
    if place.kind == "hub" and place.repo:
        tag = f":{place.tag}" if place.tag else ""
        return ["-hfd" if draft else "-hf", place.repo + tag]
    path = place.path if place.kind == "file" and place.path else placeholder(place)
    return ["-md" if draft else "-m", path]


def placeholder(place: ModelPlace) -> str:
    """File name under which a model that is not on this disk yet is expected."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", place.name).strip("-.") or "model"
    if place.tag and place.tag.lower() not in stem.lower():
        stem += "-" + re.sub(r"[^A-Za-z0-9._-]+", "-", place.tag)
    return f"{stem}.gguf"


def spec_type_names(methods: Sequence[Method], build: BuildFlags) -> list[str]:
    """The build's names of these methods; empty where the build needs none.

    Raises:
        EngineError: the build lacks one of them.
    """
    if build.spec_types is None:
        return list(methods)
    if not build.spec_types:
        if list(methods) in ([], ["draft-simple"]):
            return []
        missing = next(m for m in methods if m != "draft-simple")
        raise EngineError(f"{build.label} has no --spec-type, so it cannot do {missing}.", "Install a newer llama.cpp.")
    names: list[str] = []
    for method in methods:
        if method in build.spec_types:
            names.append(method)
        elif _EARLIER_NAMES.get(method) in build.spec_types:
            names.append(_EARLIER_NAMES[method])
        elif method == "draft-simple":
            continue  # builds whose --spec-type lists only n-gram methods draft as soon as -md is given
        else:
            raise EngineError(f"{build.label} does not know the method {method}.", "Install a newer llama.cpp.")
    return names


def speculation_flags(run: Run, build: BuildFlags) -> list[str]:
    """Draft model, method and draft length in the build's own words.

    Raises:
        EngineError: the build lacks the method.
        InputError: a method without the draft it needs.
    """
    method = run.draft_method
    if run.spec_default and build.spec_default and run.methods == ("ngram-mod",):
        return ["--spec-default"]
    if not run.methods:
        return []
    if method in ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark") and run.draft is None:
        raise InputError(f"{method} needs a draft file.", "Name one.")
    flags: list[str] = []
    if run.draft is not None and method is not None:
        flags += model_flags(run.draft, draft=True)
    names = spec_type_names(run.ordered, build)
    if names:
        flags += ["--spec-type", ",".join(names)]
    if method is not None:
        flags += ["--spec-draft-n-max" if build.new_names else "--draft-max", str(run.draft_max)]
        if run.draft_min:
            flags += ["--spec-draft-n-min" if build.new_names else "--draft-min", str(run.draft_min)]
        # Older builds default to 0.75 or 0.8, so 0 has to be said there.
        if run.p_min or not build.new_names:
            flags += ["--draft-p-min", f"{run.p_min:g}"]
        if run.draft is not None:
            flags += draft_placement_flags(run.setup)
    for ngram in run.ngram_methods:
        flags += _ngram_flags(ngram, run, build)
    return flags


def _ngram_flags(method: Method, run: Run, build: BuildFlags) -> list[str]:
    match, most = run.ngram_match, run.ngram_max
    if method == "ngram-cache":
        return []  # lengths are fixed in llama.cpp
    flags: list[str] = []
    if not build.new_names:
        if match:
            flags += ["--spec-ngram-size-n", str(match)]
        if most:
            flags += ["--spec-ngram-size-m", str(most)]
            if run.draft_method is None:
                flags += ["--draft-max", str(most)]
        return flags
    if method == "ngram-mod":
        if match:
            flags += ["--spec-ngram-mod-n-match", str(match)]
        if most:
            # The default minimum, 48, would drop every shorter draft unseen.
            flags += ["--spec-ngram-mod-n-min", str(min(most, 48))] if most < 48 else []
            flags += ["--spec-ngram-mod-n-max", str(most)]
        return flags
    if match:
        flags += [f"--spec-{method}-size-n", str(match)]
    if most:
        flags += [f"--spec-{method}-size-m", str(most)]
    return flags


def placement_flags(setup: Setup) -> list[str]:
    """Which weights lie where: ``-ngl``, ``--cpu-moe``, split, RPC hosts.

    Raises:
        InputError: an RPC host without an address.
    """
    place = setup.placement
    flags: list[str] = []
    if setup.backend == "cpu":
        # On a CPU-only machine there is nothing to keep away from; elsewhere a GPU build would take the GPU.
        return [] if setup.hardware.device.is_cpu else ["-dev", "none"]
    flags += ["-ngl", str(ALL_LAYERS if place.gpu_layers is None else place.gpu_layers)]
    if place.cpu_moe:
        flags.append("--cpu-moe")
    elif place.cpu_moe_layers:
        flags += ["--n-cpu-moe", str(place.cpu_moe_layers)]
    if place.split != "layer":
        flags += ["-sm", place.split]
    if place.tensor_split:
        flags += ["-ts", ",".join(f"{x:g}" for x in place.tensor_split)]
    if place.rpc:
        addresses = [h.address for h in place.rpc]
        if not all(addresses):
            raise InputError("An RPC host needs an address.", "Give it as HOST:PORT.")
        flags += ["--rpc", ",".join(str(a) for a in addresses)]
    return flags


def draft_placement_flags(setup: Setup) -> list[str]:
    """Where the draft goes. It is always said: builds differ in what they do when it is not."""
    if setup.backend == "cpu":
        return [] if setup.hardware.device.is_cpu else ["-devd", "none"]
    if setup.placement.draft_device == "host":
        return ["-ngld", "0"]
    flags = ["-ngld", str(ALL_LAYERS)]
    prefix = _DEVICE_PREFIX.get(setup.backend)
    if setup.placement.draft_device == "second" and prefix:
        flags += ["-devd", f"{prefix}1"]
    elif setup.placement.rpc and prefix:
        # A draft pass over the network would cost its latency for every token.
        flags += ["-devd", ",".join(f"{prefix}{i}" for i in range(len(setup.hardware.devices)))]
    return flags


def cache_flags(setup: Setup) -> list[str]:
    """Cache types, where they are not f16, and flash attention where it must be forced."""
    flags: list[str] = []
    if setup.cache_type_k != "f16":
        flags += ["-ctk", setup.cache_type_k]
    if setup.cache_type_v != "f16":
        flags += ["-ctv", setup.cache_type_v]
    if not setup.flash_attention:
        flags += ["-fa", "off"]
    elif setup.cache_type_v != "f16":
        flags += ["-fa", "on"]  # a quantised V cache needs it
    return flags


def command(
    run: Run,
    build: BuildFlags | None = None,
    shell: Shell | None = None,
    *,
    host: str | None = None,
    port: int | None = None,
    metrics: bool = False,
) -> Command:
    """The llama-server command of ``run``, quoted for ``shell`` (None = the usual one of this platform).

    Raises:
        EngineError: the build cannot do it.
        InputError: ``run`` contradicts itself.
    """
    build = build or BuildFlags()
    shell = shell or default_shell()
    argv = server_argv(run, build, host=host, port=port, metrics=metrics)
    notes: list[str] = []
    ready = True
    for role, place in (("target", run.target), ("draft", run.draft)):
        if place is None:
            continue
        if place.kind == "name":
            ready = False
            notes.append(f"Get the {role} first and put its path in place of {placeholder(place)}.")
        elif place.kind == "hub":
            notes.append(f"llama-server downloads the {role} on its first start ({place.bytes / 1e9:.1f} GB).")
    if run.setup.placement.rpc:
        notes.append(
            "Start rpc-server on every RPC host first; it has no authentication, so keep it off open networks."
        )
    line: str | None = None
    text: str | None = None
    try:
        line, text = join(argv, shell), pretty(argv, shell)
    except InputError as error:
        notes.append(str(error))
    return Command(
        argv=argv, shell=shell, line=line, text=text, build=build.label, ready=ready and line is not None,
        notes=tuple(notes),
    )  # fmt: skip
