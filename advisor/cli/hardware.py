"""`advisor hardware`: the machines that are known by name, and what this one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer
from pydantic import Field

from advisor.base import Figure, Frozen
from advisor.cli import options
from advisor.hardware.machine import Device, Hardware
from advisor.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from advisor.hardware.facts import Facts

app = typer.Typer(no_args_is_help=True, help="Machines known by name, and what this one is.")

_FIGURES = ("bandwidth", "memory", "fp32_vector", "fp16", "int8", "tdp")
_LABELS = {"fp32_vector": "FP32 shaders", "fp16": "FP16", "int8": "INT8", "tdp": "TDP"}


class DeviceList(Frozen):
    """What ``advisor hardware list --json`` prints."""

    schema_version: int = 1
    devices: tuple[Device, ...]
    families: dict[str, tuple[str, ...]]
    """Names that may mean several devices, with their slugs, the one that is assumed first."""


class ShownHardware(Frozen):
    """What ``advisor hardware show --json`` and ``detect --json`` print."""

    schema_version: int = 1
    hardware: Hardware
    system: dict[str, str] = Field(default_factory=dict)
    """What was found out about this machine besides its devices (detect only)."""


@app.command("list")
def list_(
    words: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(help="Show only devices with these words in name, vendor, class or architecture."),
    ] = None,
    json: options.Json = False,
) -> None:
    """All devices that profiles describe.

    \b
    Examples:
      advisor hardware list
      advisor hardware list amd workstation
    """
    from advisor.hardware.profiles import devices

    profiles = devices()
    wanted = [word.lower() for word in words or []]
    shown = [device for device in profiles.values() if all(word in _words(device) for word in wanted)]
    if json:
        typer.echo(DeviceList(devices=tuple(shown), families=profiles.families).model_dump_json(indent=2))
        return
    from rich.table import Table

    from advisor.report.console import console

    out = console()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("name", overflow="fold")
    table.add_column("GB/s", justify="right", no_wrap=True)
    table.add_column("GB", justify="right", no_wrap=True)
    table.add_column("slug", no_wrap=True)
    group = None
    for device in shown:
        if (device.vendor, device.device_class) != group:
            group = (device.vendor, device.device_class)
            table.add_row(f"{clean(device.vendor)} {device.device_class}", "", "", "", style="bold")
        assumed = device.bandwidth is not None and device.bandwidth.kind == "assumed"
        table.add_row(
            f"  {clean(device.name)}",
            _number(device.bandwidth) + ("*" if assumed else " "),
            _number(device.memory),
            device.slug,
        )
    out.print(table)
    out.print(
        f"{len(shown)} of {len(profiles)} devices. GB/s: theoretical memory bandwidth, * = assumed. "
        "`advisor hardware show NAME` tells where each figure comes from."
    )


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            help='A machine: "RTX 3090", 395, "2x RTX 3090", "RTX 4090 + DDR5-6000 64GB".',
            autocompletion=options.complete_hardware,
        ),
    ],
    json: options.Json = False,
) -> None:
    """One machine: its devices, every figure with its source, and what the name left open.

    \b
    Examples:
      advisor hardware show 395
      advisor hardware show "RTX 5080 + RTX 3090"
    """
    from advisor.hardware.profiles import find

    hardware = find(name)
    if json:
        typer.echo(ShownHardware(hardware=hardware).model_dump_json(indent=2))
        return
    from advisor.report.console import console

    _print(hardware, {}, console())


@app.command()
def detect(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the main memory's streaming rate (about 2 s, 256 MB).")
    ] = False,
    json: options.Json = False,
) -> None:
    """This machine, as `--hardware auto` sees it: what was found, what was assumed and why.

    \b
    Examples:
      advisor hardware detect
      advisor hardware detect --measure --json
    """
    from advisor.hardware.detect import detect as look_here
    from advisor.hardware.detect import look

    hardware = look_here(measure=measure)
    system = _system(look())
    if json:
        typer.echo(ShownHardware(hardware=hardware, system=system).model_dump_json(indent=2))
        return
    from advisor.report.console import console

    _print(hardware, system, console())


def _words(device: Device) -> str:
    return " ".join(
        (device.slug, device.name, device.vendor, device.device_class, device.architecture or "", *device.aliases)
    ).lower()


def _number(figure: Figure | None) -> str:
    return f"{figure.value:g}" if figure else "-"


def _system(facts: Facts) -> dict[str, str]:
    found = {
        "system": facts.system,
        "board": facts.board,
        "processor": facts.cpu.name,
        "cores": f"{facts.cpu.cores}" + (f", {facts.cpu_limit:g} usable" if facts.cpu_limit else ""),
        "memory modules": "; ".join(
            f"{module.size / 2**30:g} GB {module.type or 'memory'}" + (f"-{module.speed}" if module.speed else "")
            for module in facts.modules
        ),
        "graphics": "; ".join(f"{gpu.name} ({gpu.source})" for gpu in facts.gpus),
        "runs in": facts.virtual or "",
        "engine asked": facts.engine or "none found",
        "its devices": "; ".join(f"{device.name} {device.description}" for device in facts.engine_devices),
    }
    return {key: clean(value, 300) for key, value in found.items() if value}


def _print(hardware: Hardware, system: dict[str, str], out: Console) -> None:
    out.print(f"{clean(hardware.name)}, backend {hardware.backend}", style="bold")
    if system:
        table = _table()
        for key, value in system.items():
            table.add_row(key, value)
        out.print(table)
    shown: dict[Device, int] = {}
    for device in hardware.devices:
        shown[device] = shown.get(device, 0) + 1
    for device, count in shown.items():
        _device(device, f"{count}x " if count > 1 else "", out)
    if hardware.host is not None:
        _device(hardware.host, "Host: ", out)
    if hardware.link is not None:
        out.print("\nLink between host and GPU", style="bold")
        table = _table()
        table.add_row("rate", *_cells(hardware.link))
        out.print(table)
    if hardware.assumptions:
        out.print("\nAssumed", style="bold")
        for sentence in hardware.assumptions:
            out.print(f"- {clean(sentence, 400)}")


def _device(device: Device, before: str, out: Console) -> None:
    about = ", ".join(part for part in (device.vendor, device.architecture, device.device_class) if part)
    out.print(f"\n{before}{clean(device.name)}", style="bold")
    out.print(f"{clean(about)}; {device.slug}")
    table = _table()
    for field in _FIGURES:
        figure: Figure | None = getattr(device, field)
        if figure:
            table.add_row(_LABELS.get(field, field), *_cells(figure))
    out.print(table)
    if device.notes:
        out.print(clean(device.notes, 400))


def _cells(figure: Figure) -> tuple[str, str, str]:
    return f"{figure.value:g} {figure.unit}", figure.kind, clean(figure.source, 400)


def _table() -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for _ in range(3):
        table.add_column(overflow="fold")
    return table
