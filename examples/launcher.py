"""How a launcher asks before it starts a model: a few lines around one object.

    python examples/launcher.py model.gguf [more.gguf ...]

The first model is the target, the others are offered as drafts. A launcher would keep one ``Advisor`` and ask it from
any thread; nothing here prints, blocks longer than it says, or needs a network.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import advisor


class Plan(NamedTuple):
    """What to start, and what to tell the user."""

    arguments: tuple[str, ...]
    speculates: bool
    sentence: str
    expected: advisor.Expectation


class Advisor:
    """Keeps the machine and what llama.cpp can do; both are looked up once."""

    def __init__(self, hardware: str = "auto", engine: advisor.Engine | None = None) -> None:
        self.setup = advisor.resolve(hardware)
        self.build = advisor.flags_of(engine) if engine is not None else None
        self.methods = advisor.methods_of(engine) if engine is not None else None

    def plan(
        self,
        target: str,
        drafts: Sequence[str] = (),
        *,
        task: advisor.Task | None = None,
        context: int = 8192,
        stop: threading.Event | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Plan:
        """Weigh the drafts against starting the target alone.

        Raises:
            advisor.AdvisorError: an unusable target, or ``stop`` was set; ``str(error)`` is fit for a dialog.
        """
        answer = advisor.recommend(
            target,
            setup=self.setup,
            drafts=drafts,
            local=False,  # a launcher knows its own models
            catalogue=False,
            task=task,
            context=context,
            build=self.build,
            methods=self.methods,
            progress=progress,
            cancelled=stop.is_set if stop is not None else None,
        )
        arguments = answer.command.argv if answer.command is not None else ()
        return Plan(arguments, answer.speculate, answer.headline, answer.expected())


def main(paths: Sequence[str]) -> int:
    """The command line of this example."""
    if not paths:
        print(__doc__)
        return 2
    try:
        plan = Advisor().plan(paths[0], paths[1:])
    except advisor.AdvisorError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(plan.sentence)
    print(" ".join(plan.arguments))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
