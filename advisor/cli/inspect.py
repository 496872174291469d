"""``advisor inspect``: what a model is, from its header alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from advisor.models.inspection import InspectReport

app = typer.Typer()

ROLE_NAMES = {
    "embedding": "input table", "head": "output matrix", "attention": "attention", "ffn": "feed-forward",
    "experts": "routed experts", "shared_experts": "shared experts", "router": "routers", "norm": "norms",
    "recurrent": "recurrent mixers", "convolution": "convolutions", "per_layer_embedding": "per-layer table",
    "mtp": "MTP block", "mtp_experts": "MTP experts", "mtp_head": "MTP head copy", "fusion": "feature fusion",
    "unused": "never read",
    "other": "other",
}  # fmt: skip
KIND_NAMES = {
    "model": "language model", "drafter": "drafter head", "mmproj": "vision projector", "lora": "LoRA adapter",
    "imatrix": "importance matrix", "vocabulary": "vocabulary only", "shard": "part of a set",
    "other": "something else",
}  # fmt: skip


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help=options.MODEL_HELP, autocompletion=options.complete_model)],
    layers: Annotated[bool, typer.Option("--layers", help="Show every block.")] = False,
    quant: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Option("--quant", "-q", help="File type, where the name leaves it open."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the Hugging Face Hub.")] = False,
    json: options.Json = False,
) -> None:
    """Show what a model is: bytes read per token by role, KV cache, state, MTP, tokenizer.

    \b
    Examples:
      advisor inspect model.gguf --layers
      advisor inspect qwen3.6-35b-a3b:UD-Q4_K_XL
      advisor inspect unsloth/Qwen3-8B-GGUF:Q4_K_M

    Only the header is read, never the weights. A file that is no model (projector, adapter, importance matrix ...) is
    named and refused with exit code 2.
    """
    from advisor.errors import ModelFileError
    from advisor.models.inspection import inspect_report
    from advisor.models.pairs import refusal
    from advisor.models.reference import describe

    description = describe(model, quant=quant, offline=offline)
    report = inspect_report(description, layers)
    if json:
        typer.echo(report.model_dump_json(indent=2))
    elif description.kind in ("model", "drafter"):
        _show(report, layers)
    if description.kind not in ("model", "drafter"):
        raise ModelFileError(*refusal(description))


def _show(report: InspectReport, layers: bool) -> None:
    from rich.table import Table

    from advisor.report.console import console
    from advisor.text import clean

    out = console()
    out.print(
        f"{clean(report.name, 100)}: {KIND_NAMES[report.kind]}, {clean(report.architecture)}, {clean(report.quant)}"
    )
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _facts(report):
        facts.add_row(name, value)
    out.print(facts)
    roles = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    roles.add_column("weights")
    for head in ("parameters", "in file", "read/token"):
        roles.add_column(head, justify="right")
    roles.add_column("types", overflow="ellipsis", no_wrap=True, max_width=30)
    for r in report.roles:
        read = _bytes(r.per_token) if r.per_token else "-"
        roles.add_row(ROLE_NAMES[r.role], _count(r.parameters), _bytes(r.bytes), read, clean(" ".join(r.quants), 60))
    out.print()
    out.print(roles)
    if layers:
        _show_layers(report, out)
    if report.assumptions or report.notes:
        out.print()
    for line in report.assumptions:
        out.print(f"assumed: {clean(line, 300)}")
    for line in report.notes:
        out.print(f"note: {clean(line, 300)}")


def _facts(report: InspectReport) -> list[tuple[str, str]]:
    from advisor.text import clean

    active = f", {_count(report.active_parameters)} active" if report.expert_count else ""
    rows = [
        ("size", f"{_bytes(report.size_bytes)}, {_count(report.total_parameters)} parameters{active}, "
                 f"{report.bits_per_weight:.2f} bits each"),
        ("read per decode step", f"{_bytes(report.decode_bytes)} of weights"),
    ]  # fmt: skip
    mixers = ", ".join(f"{n} {m}" for m, n in report.mixers.items())
    blocks = f"{report.layer_count} ({mixers})" if mixers else str(report.layer_count)
    rows.append(("blocks", blocks + (f", run {report.loops} times" if report.loops > 1 else "")))
    if report.expert_count:
        rows.append(("experts", f"{report.expert_used} of {report.expert_count} per token"))
    window = f" (window {report.window:,} in sliding blocks)" if report.window else ""
    rows.append(("KV cache, f16", f"{_bytes(report.kv_bytes_per_1000)} per 1000 tokens{window}"))
    if report.state_bytes:
        rows.append(("recurrent state", f"{_bytes(report.state_bytes)} per sequence, whatever the length"))
    if report.kind == "model":
        rows.append(("MTP layers", _mtp(report)))
    if report.drafter:
        rows.append(("drafts", _drafter(report)))
    context = f"{report.context_length:,}" if report.context_length else "not stated"
    rows.append(("trained context", context + " tokens" * bool(report.context_length)))
    rows.append(("tokenizer", _tokenizer(report)))
    if report.catalogue_slug:
        rows.append(("catalogue", clean(report.catalogue_slug)))
    if len(report.files) > 1:
        rows.append(("files", str(len(report.files))))
    return rows


def _mtp(report: InspectReport) -> str:
    block = report.mtp
    if block is None:
        return "none"
    size = block.bytes + block.expert_bytes + block.head_bytes
    return f"{block.layers} ({_bytes(size)}, {'own' if block.head_bytes else 'shares the'} output matrix)"


def _drafter(report: InspectReport) -> str:
    drafter = report.drafter
    assert drafter is not None
    parts: list[str] = [drafter.method]
    if drafter.target_width:
        parts.append(f"for targets {drafter.target_width} wide")
    if drafter.target_layers:
        parts.append("reads layers " + ", ".join(str(i) for i in drafter.target_layers))
    if drafter.block_size:
        parts.append(f"blocks of {drafter.block_size}")
    if drafter.vocabulary:
        parts.append(f"{drafter.vocabulary:,} tokens")
    return ", ".join(parts)


def _tokenizer(report: InspectReport) -> str:
    from advisor.text import clean

    t = report.tokenizer
    if t is None:
        return "none in the file"
    parts = [t.type + (f"/{clean(t.pre, 30)}" if t.pre else ""), f"{t.size:,} tokens"]
    if t.family:
        parts.append(f"family {t.family}")
    if t.add_bos is not None:
        parts.append(f"BOS {t.bos_id} added" if t.add_bos else "no BOS")
    if t.digest:
        parts.append(f"id {t.digest[:12]}")
    return ", ".join(parts)


def _show_layers(report: InspectReport, out: Console) -> None:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in ("block", "mixer", "bytes", "experts", "KV/token", "window", "state"):
        table.add_column(head, justify="left" if head == "mixer" else "right")
    for x in report.layers:
        experts = f"{x.expert_used}/{x.expert_count}" if x.expert_count else "-"
        kv = 2 * (x.key_width + x.value_width)
        table.add_row(
            str(x.index), x.mixer, _bytes(x.bytes), experts, _bytes(kv) if kv else "-",
            f"{x.window:,}" if x.window else "-", _bytes(4 * x.state_elements) if x.state_elements else "-",
        )  # fmt: skip
    out.print()
    out.print(table)


def _bytes(count: float) -> str:
    from advisor.report.console import format_bytes

    return format_bytes(count)


def _count(n: int) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return str(n)
