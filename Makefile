PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow check bench bench-quick docs clean

# Everything runs in one virtual environment, made anew when what it depends on changes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/report_figure.py demo

test: $(STAMP)
	$(BIN)/python -m pytest

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The peers are many and heavy: only the benchmarks install them.
$(VENV)/.peers: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

bench: $(VENV)/.peers
	$(BIN)/python benchmarks/speed/run.py benchmarks/speed/results
	$(BIN)/python benchmarks/speed/plot.py benchmarks/speed/results

bench-quick: $(VENV)/.peers
	$(BIN)/python benchmarks/speed/run.py --quick demo/speed
	$(BIN)/python benchmarks/speed/plot.py demo/speed

docs: $(STAMP)
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q docs docs/_build
	@echo "docs/_build/index.html"

clean:
	rm -rf $(VENV) build dist demo docs/_build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
