"""The embedded engine: the xllamacpp wheel, llama.cpp's own server as a library, in a child process.

It is never imported here: an abort inside it would take the caller down. The child (``worker.py``) serves the same HTTP
interface as llama-server on a port that the operating system chooses, and tells us the address through our pipe.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from advisor.errors import EngineError
from advisor.llamacpp.find import Capabilities, Engine, EngineDevice, isolated_environment
from advisor.llamacpp.server import ServerOptions, effective_ngram

_WORKER = Path(__file__).with_name("worker.py")
_FLAGS = frozenset({"--spec-synth-rates", "--spec-draft-n-max", "--metrics", "--slots", "--model"})
"""What the worker can pass on, in the words of the command line."""
_TYPES = (
    "none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark",
    "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
)  # fmt: skip
_HINT = "Install it with: pip install 'draft-advisor[embedded]'."


def embedded_engine() -> Engine:
    """The wheel as an engine.

    Raises:
        EngineError: xllamacpp is not installed.
    """
    try:
        if importlib.util.find_spec("xllamacpp") is None:
            raise EngineError("The embedded engine (xllamacpp) is not installed.", _HINT)
        version = importlib.metadata.version("xllamacpp")
    except (ImportError, ValueError, importlib.metadata.PackageNotFoundError) as error:
        raise EngineError(f"The embedded engine (xllamacpp) is not installed properly: {error}.", _HINT) from error
    # The wheel's version carries llama.cpp's build number last: 2026.10.11549.
    number = version.rpartition(".")[2]
    return Engine(
        kind="embedded",
        command=(),
        version=f"xllamacpp {version}",
        build=f"b{number}" if number.isdigit() and len(number) >= 4 else "unknown",
        capabilities=Capabilities(flags=_FLAGS, spec_types=_TYPES, family="spec"),
        origin="the xllamacpp package",
    )


def equivalent() -> Engine:
    """The llama-server of the same llama.cpp, for showing the command that would do the same."""
    return Engine(
        kind="llama-server",
        command=("llama-server",),
        version="",
        build="",
        capabilities=Capabilities(
            flags=frozenset(
                {
                    *_FLAGS,
                    "--spec-draft-n-min",
                    "--spec-draft-p-min",
                    "--spec-ngram-mod-n-max",
                    "--spec-ngram-mod-n-min",
                }
                | {"--spec-ngram-mod-n-match"}
                | {f"--spec-ngram-{t}-size-{x}" for t in ("simple", "map-k", "map-k4v") for x in "mn"}
            ),
            spec_types=_TYPES,
            family="spec",
        ),
    )


def worker_command(options: ServerOptions, alias: str) -> list[str]:
    """Command that serves these options in a child process.

    Raises:
        EngineError: raw llama-server arguments were asked for.
    """
    if options.extra:
        raise EngineError(
            f"The embedded engine takes no llama-server arguments ({' '.join(options.extra)}).",
            "Install llama.cpp and give it with --engine PATH.",
        )
    shape = effective_ngram(options)
    fields = options.model_dump(mode="json", exclude={"extra", "ngram"})
    fields |= {"ngram_match": shape.match, "ngram_minimum": shape.minimum, "alias": alias}
    return [sys.executable, "-I", str(_WORKER), json.dumps(fields)]


def embedded_devices() -> tuple[EngineDevice, ...]:
    """Accelerators that this wheel was built for and finds here."""
    done = subprocess.run(
        [sys.executable, "-I", str(_WORKER), "devices"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env=isolated_environment(),
        timeout=60,
        check=False,
    )
    try:
        rows = json.loads(done.stdout.decode("utf-8", "replace"))
    except ValueError:
        return ()
    return tuple(EngineDevice(**row) for row in rows)
