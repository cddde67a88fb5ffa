PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow test-sanitised check bench bench-quick bench-scale \
	quality quality-quick quality-final docs clean

# Everything runs in one virtual environment, made anew when what it depends on changes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/condens demo -o demo --force

# A process for each core, with one thread each: threads that wait for one another spin. Compiled
# tests are kept, whatever the environment says: to rewrite their assertions takes seconds.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test: $(STAMP)
	$(PYTEST)

test-slow: $(STAMP)
	$(PYTEST) -m slow

# The native kernel built anew, beside the normal one, to stop at the first byte out of place.
SANITISED := build/sanitised
test-sanitised: $(STAMP)
	rm -rf $(SANITISED)
	CC=gcc CONDENS_SANITISED=1 $(BIN)/python setup.py -q build \
		--build-lib $(SANITISED)/lib --build-temp $(SANITISED)/temp
	PYTHONPATH=$(SANITISED)/lib ASAN_OPTIONS=detect_leaks=0 CONDENS_SANITISED=$(SANITISED)/lib \
	LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
		$(BIN)/python -m pytest -q -s -p no:cacheprovider -k "misuse or native" \
		tests/kernels/test_misuse.py tests/kernels/test_native_networks.py \
		tests/functional/test_fused_linear.py \
		tests/functional/test_missing.py \
		tests/functional/test_fused.py::test_loss_and_gradients_are_those_of_layer_1 \
		tests/functional/test_sampling.py::test_every_draw_is_the_one_solved_alone

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

# Some minutes a round; lines are added to those that are there.
bench-scale: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scale/run.py benchmarks/scale/results

# Tables and reference posteriors lie beside the checkout; tasks without theirs are skipped.
DATA ?= ../shared/data
JOBS ?= 2
QUALITY = OMP_NUM_THREADS=1 $(BIN)/python benchmarks/quality/run.py --data-dir $(DATA) --jobs $(JOBS)

# Many hours; killed, it continues. HOURS=8 ends it in time, ONLY=condens leaves peers as they are.
quality: $(VENV)/.peers
	$(QUALITY) benchmarks/quality/results $(if $(HOURS),--hours $(HOURS)) $(if $(ONLY),--only $(ONLY))

quality-quick: $(VENV)/.peers
	$(QUALITY) --quick demo/quality

# Looks at the test rows, and is counted: after the last choice, not before.
quality-final: $(VENV)/.peers
	$(QUALITY) --final benchmarks/quality/results $(if $(HOURS),--hours $(HOURS)) $(if $(ONLY),--only $(ONLY))

docs: $(STAMP)
	$(BIN)/sphinx-build --fail-on-warning --keep-going -q docs docs/_build
	@echo "docs/_build/index.html"

clean:
	rm -rf $(VENV) build dist demo docs/_build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
