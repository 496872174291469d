"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional, cast, get_args

import typer

if TYPE_CHECKING:
    from advisor.speculation.prediction import Method, Task

MODEL_HELP = "A .gguf file, a Hub repository (org/repo[:QUANT]) or a catalogue name (qwen3.5-27b:Q8_0)."

# typer reads these annotations at run time, on Python 3.10 too: Optional[...] instead of "X | None".


def complete_model(incomplete: str) -> list[str]:
    """Catalogue names that begin like what was typed (files are completed by the shell)."""
    from advisor.models.catalogue import names

    return [name for name in names() if name.startswith(incomplete.lower())]


def complete_hardware(incomplete: str) -> list[str]:
    """Profile slugs that begin like what was typed."""
    from advisor.hardware.profiles import devices

    return [slug for slug in devices() if slug.startswith(incomplete.lower())]


def _known(what: str, name: str, names: tuple[str, ...]) -> str:
    """``name`` if it is one of ``names``.

    Raises:
        InputError: it is not.
    """
    if name not in names:
        from advisor.errors import InputError

        raise InputError(f"There is no {what} {name!r}.", f"Use one of {', '.join(names)}.")
    return name


def method_of(name: str | None) -> Method | None:
    """A method name checked against llama.cpp's list.

    Raises:
        InputError: no such method.
    """
    if name is None:
        return None
    from advisor.speculation import prediction

    return cast("Method", _known("method", name, get_args(prediction.Method)))


def task_of(name: str | None) -> Task | None:
    """A task name checked against the list.

    Raises:
        InputError: no such task.
    """
    if name is None:
        return None
    from advisor.speculation import prediction

    return cast("Task", _known("task", name, get_args(prediction.Task)))


Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON (schemas: docs/schemas).")]
Html = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--html", help="Also write a self-contained HTML report to this file."),
]
HardwareName = Annotated[
    str,
    typer.Option(
        "--hardware",
        "-H",
        help='Machine: "auto" (this one) or a profile such as "RTX 3090"; see `advisor hardware list`.',
        autocompletion=complete_hardware,
    ),
]
BackendName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--backend", "-b", help="cuda, rocm, vulkan, metal, sycl, opencl or cpu; default: the machine's usual one."
    ),
]
Bandwidth = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option("--bandwidth", help="Memory bandwidth in GB/s of a machine no profile describes."),
]
Memory = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option("--memory", help="Memory in GB that models may use on that machine."),
]
Context = Annotated[
    int, typer.Option("--context", "-c", min=0, help="Tokens in the context: cache read per step, and memory.")
]
MethodName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--method",
        "-m",
        help="draft-simple, draft-mtp, draft-eagle3, draft-dflash, ngram-mod, ngram-simple ...; default: by the files.",
    ),
]
TaskName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--task",
        "-t",
        help="code-edit, code, chat, summarise, extract, math, reasoning, prose, translate or mixed.",
    ),
]
Parallel = Annotated[int, typer.Option("--parallel", "-np", min=1, help="Requests decoded at the same time (slots).")]
GpuLayers = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--gpu-layers", "-ngl", min=0, help="Layers on the GPU, the rest on the CPU; default: all."),
]
CpuMoe = Annotated[bool, typer.Option("--cpu-moe", help="Keep all routed experts on the CPU.")]
NCpuMoe = Annotated[
    int, typer.Option("--n-cpu-moe", min=0, help="Keep the routed experts of the first N layers on the CPU.")
]
CacheTypeK = Annotated[str, typer.Option("--cache-type-k", "-ctk", help="KV cache type of keys: f16, q8_0, q4_0 ...")]
CacheTypeV = Annotated[str, typer.Option("--cache-type-v", "-ctv", help="KV cache type of values.")]
DraftMax = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option("--draft-max", "-k", help="Most tokens drafted per round; default: llama.cpp's (3 for models)."),
]
Best = Annotated[bool, typer.Option("--best", help="Use the best draft length instead of the default one.")]
Acceptance = Annotated[
    Optional[float],  # noqa: UP045
    typer.Option("--acceptance", "-a", help="Accepted / drafted as reported by llama.cpp or LM Studio, 0 to 1."),
]
Temperature = Annotated[float, typer.Option("--temperature", help="Sampling temperature of the target.")]
PMin = Annotated[float, typer.Option("--p-min", help="Drafting stops below this probability.")]
Force = Annotated[bool, typer.Option("--force", help="Predict although the tokenizers do not match.")]
