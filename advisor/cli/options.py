"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON (schemas: docs/schemas).")]
HardwareName = Annotated[
    str,
    typer.Option(
        "--hardware",
        "-H",
        help='Machine: "auto" (this one) or a profile such as "RTX 3090"; see `advisor hardware list`.',
    ),
]
BackendName = Annotated[
    Optional[str],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
    typer.Option(
        "--backend",
        "-b",
        help="cuda, rocm, vulkan, metal, sycl, opencl or cpu; default: the machine's usual one.",
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
Context = Annotated[int, typer.Option("--context", "-c", help="Tokens already in the context (depth).")]
