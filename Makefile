# make demo, make test, make test-all, make bench, make bench-all, make docs, make docs-serve.  The first call makes
# .venv and installs; later ones install nothing.  make locked installs by hashes, make lock writes them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-all bench bench-all lint docs docs-serve lock locked

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)

# The same versions, each checked by its hash, except torch, which has many builds.
locked:
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	@touch $(READY)

lock: $(READY)
	$(BIN)/python -m tools.lock

demo: $(READY)
	@rm -rf demo
	@$(BIN)/reverie train digits --out demo/run --minutes 3
	@$(BIN)/reverie sample demo/run -n 100 --label all --guidance 1.5 --out demo/digits.png
	@$(BIN)/reverie sample demo/run -n 25 --guidance 1.5 --out demo/film.gif
	@echo "open: demo/digits.png demo/film.gif demo/run/loss.png"
	@echo "or in the browser: $(BIN)/reverie studio demo"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src tests docs examples benchmarks tools *.md Makefile pyproject.toml
	$(BIN)/python -m tools.words
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.map --check
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.notebooks --check
	$(BIN)/python -m tools.licences --check
	$(BIN)/python -m tools.lock --check
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest

test-all: lint
	$(BIN)/python -m pytest -m ""

bench: $(READY)
	$(BIN)/python -m benchmarks.run

bench-all: $(READY)
	$(BIN)/python -m benchmarks.run --all

docs: $(READY)
	$(BIN)/python -m zensical build --clean --strict
	@echo "open: site/index.html"

docs-serve: $(READY)
	$(BIN)/python -m zensical serve
