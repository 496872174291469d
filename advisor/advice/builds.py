"""What the llama.cpp that was found calls its options, in the words of :mod:`advisor.advice.launch`."""

from __future__ import annotations

from typing import get_args

from advisor.advice.launch import BuildFlags
from advisor.llamacpp.find import Engine
from advisor.speculation.prediction import Method


def flags_of(engine: Engine) -> BuildFlags:
    """Option names of an engine. The embedded one has no command line: a current llama-server's is shown instead."""
    if engine.kind == "embedded" or not engine.command:
        return BuildFlags(label="a current llama-server; none is installed here")
    able = engine.capabilities
    return BuildFlags(
        program=engine.command,
        new_names=able.family != "draft",
        spec_types=able.spec_types if "--spec-type" in able.flags else (),
        spec_default="--spec-default" in able.flags,
        label=engine.label,
    )


def methods_of(engine: Engine) -> frozenset[Method]:
    """Methods the engine knows."""
    return frozenset(m for m in get_args(Method) if engine.capabilities.supports(m))
