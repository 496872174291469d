"""``advisor models``: the catalogue, and the models on this disk."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from advisor.base import Frozen
from advisor.cli import options

app = typer.Typer()

MODELS_SCHEMA_VERSION = 1


class ModelEntry(Frozen):
    """One line of the answer. Sizes in bytes; ``size_bytes`` of catalogue entries for the file type asked for."""

    name: str
    kind: str
    architecture: str
    quant: str
    size_bytes: int
    total_parameters: int
    active_parameters: int
    decode_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    mtp_layers: int
    tokenizer_family: str | None = None
    catalogue_slug: str | None = None
    origin: str = "catalogue"
    path: str | None = None


class Unreadable(Frozen):
    """A file that is no model, and why."""

    path: str
    reason: str


class ModelsReport(Frozen):
    """The answer of ``advisor models``."""

    schema_version: int = MODELS_SCHEMA_VERSION
    models: tuple[ModelEntry, ...]
    unreadable: tuple[Unreadable, ...] = ()


@app.command()
def models(
    search: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(help="Show only names that contain these words.", autocompletion=options.complete_model),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", "-l", help="Models on this disk: LM Studio, llama.cpp, Hugging Face, Ollama.")
    ] = False,
    folder: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--folder", "-f", help="Models in this folder (with all below it) instead; may be repeated."),
    ] = None,
    quant: Annotated[str, typer.Option("--quant", "-q", help="File type the catalogue's sizes are for.")] = "Q4_K_M",
    json: options.Json = False,
) -> None:
    """List or search the catalogue of models that can be named, or the models on this disk.

    \b
    Examples:
      advisor models qwen3.6
      advisor models --local
      advisor models --folder /data/gguf --json
    """
    report = _on_disk(folder, search) if local or folder else _catalogue(search, quant)
    if json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _show(report, bool(local or folder))


def _words(search: str | None) -> list[str]:
    return (search or "").lower().split()


def _catalogue(search: str | None, quant: str) -> ModelsReport:
    from advisor.errors import UnknownModelError
    from advisor.models.catalogue import describe_catalogue, names, suggestions
    from advisor.text import clean

    words = _words(search)
    chosen = [name for name in names() if all(word in name for word in words)]
    if not chosen:
        close = suggestions(search or "")
        raise UnknownModelError(
            f"No name in the catalogue contains {clean(search or '', 80)}.",
            f"Did you mean {' or '.join(close)}?" if close else None,
        )
    return ModelsReport(models=tuple(_entry(describe_catalogue(name, quant=quant)) for name in chosen))


def _entry(model: object, origin: str = "catalogue", path: str | None = None, name: str | None = None) -> ModelEntry:
    from advisor.models.catalogue import tokenizer_family
    from advisor.models.description import ModelDescription

    assert isinstance(model, ModelDescription)
    family = model.tokenizer.family if model.tokenizer else None
    if family is None and model.catalogue_slug:
        family = tokenizer_family(model.catalogue_slug)
    return ModelEntry(
        name=name or model.name,
        kind=model.kind,
        architecture=model.architecture,
        quant=model.quant,
        size_bytes=model.size_bytes,
        total_parameters=model.total_parameters,
        active_parameters=model.active_parameters,
        decode_bytes=model.decode_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        state_bytes=model.state_bytes,
        mtp_layers=model.mtp_layers,
        tokenizer_family=family,
        catalogue_slug=model.catalogue_slug,
        origin=origin,
        path=path,
    )


def _on_disk(folders: list[str] | None, search: str | None) -> ModelsReport:
    from advisor.models.description import ModelDescription
    from advisor.models.places import describe_all, model_files

    words = _words(search)
    entries, unreadable = [], []
    for found, outcome in describe_all(model_files(folders or None)):
        if not all(word in str(found.path).lower() or word in found.name.lower() for word in words):
            continue
        if isinstance(outcome, ModelDescription):
            entries.append(_entry(outcome, found.origin, str(found.path), found.name))
        else:
            unreadable.append(Unreadable(path=str(found.path), reason=str(outcome)))
    return ModelsReport(models=tuple(entries), unreadable=tuple(unreadable))


def _show(report: ModelsReport, on_disk: bool) -> None:
    from rich.table import Table

    from advisor.report.console import console, format_bytes
    from advisor.text import clean

    out = console()
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("model", overflow="fold", min_width=20)
    for head in ("size", "read/token", "KV/1k") + (("where",) if on_disk else ("weights",)):
        table.add_column(head, justify="left" if head == "where" else "right", no_wrap=head != "where")
    table.add_column("")
    for m in report.models:
        if m.kind not in ("model", "drafter"):
            mark = m.kind
        else:
            mark = "drafter" if m.kind == "drafter" else "MTP" if m.mtp_layers else ""
        weights = f"{m.total_parameters / 1e9:.3g} B"
        table.add_row(
            clean(m.name, 100) + (f" {clean(m.quant, 20)}" if on_disk else ""),
            format_bytes(m.size_bytes),
            format_bytes(m.decode_bytes) if m.kind in ("model", "drafter") else "-",
            format_bytes(1000 * m.kv_bytes_per_token) if m.kv_bytes_per_token else "-",
            m.origin if on_disk else weights,
            mark,
        )
    if report.models:
        out.print(table)
    else:
        out.print("No GGUF models found.")
    for bad in report.unreadable:
        out.print(f"not usable: {clean(bad.reason, 300)}")
    if report.models and not on_disk:
        out.print(
            f"{len(report.models)} names; sizes for {clean(report.models[0].quant, 20)} files (NAME:TYPE for others)."
        )
