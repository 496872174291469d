"""The command line: commands are imported when they are asked for, so that each starts fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = (
    "inspect", "check", "predict", "recommend", "scan", "confirm", "calibrate", "hardware", "roofline",
    "acceptance", "validate", "report", "models", "doctor",
)  # fmt: skip


class LazyGroup(TyperGroup):
    """Finds command ``name`` as ``advisor.cli.name.app`` on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of a user's journey."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the command's module; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"advisor.cli.{cmd_name}")
        application = module.app
        # Plain help like that of the top command, and completion is installed once, there.
        application.rich_markup_mode = None
        application._add_completion = False
        command = typer.main.get_command(application)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="advisor",
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        from advisor import __version__

        typer.echo(f"draft-advisor {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Will a draft model (or MTP, EAGLE-3, n-gram) make this model faster on this machine?"""


def main() -> None:
    """Run the command line; every failure we foresee is one sentence and a stable exit code."""
    from advisor.errors import EXIT_INTERRUPTED, AdvisorError
    from advisor.text import clean

    if os.environ.get("_ADVISOR_COMPLETE") == "complete_bash":
        from advisor.cli.completion import mend_bash_words

        mend_bash_words(os.environ)
    try:
        app()
    except AdvisorError as error:
        typer.echo(f"advisor: {clean(str(error), 2000)}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("advisor: interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) went away: not an error, but Python must not complain at exit either.
        sys.stderr.close()
        sys.exit(EXIT_INTERRUPTED)
