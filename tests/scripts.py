"""Loads the scripts that are not part of the package: benchmarks, examples, generators of the docs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load(name: str) -> Any:
    """The module in the file ``name``, seen from the project's root."""
    path = ROOT / name
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and named tuples look their module up
    spec.loader.exec_module(module)
    return module
