# `make demo`, `make test` and `make bench` each do all their own set-up, in .venv. They need Python >= 3.11 with its headers
# and venv, make, a C compiler, 3 GB of disk, and a package index. Where there is no Java, the spark extra brings one.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Containers often set it. Hundreds of processes would then compile what they import, each again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo quick test test-long lint style types check wheel soak torture bench bench-smoke kernels clean

demo: $(VENV)/.ready
	$(BIN)/elf demo

# Within a minute: all tests that need no process, no network and no Spark, and are not slow (tests/conftest.py).
QUICK := not process and not spark and not slow
quick: lint
	$(BIN)/python -m pytest -q -n auto -m "$(QUICK)"

# What must hold before a change is shared. The types and the wheel take one core each.
test: style
	$(MAKE) --no-print-directory -j 2 types wheel
	$(MAKE) --no-print-directory check

# Tests that take some five seconds of a processor or more: kept scenarios, a minute of torture, caps of memory, real networks, all benchmarks on small
# logs. CI runs them after `make test`.
test-long: $(VENV)/.ready
	$(BIN)/python -m pytest -q -n auto --dist loadgroup -m long

lint: style types

style: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tests/rooms.py

types: $(VENV)/.ready
	$(BIN)/mypy

# On all cores, with one process more than these; whatever needs Spark shares one process, and so one session.
check: $(VENV)/.ready
	$(BIN)/python -m pytest -q -n auto --dist loadgroup -m "not long"

# The wheel, built from the source archive, in an environment that holds nothing else.
wheel: $(VENV)/.ready
	$(BIN)/python tests/wheel.py

# All examples of the property tests; all scenarios that failed once, whole; then new seeds of the simulator for SECONDS, all on all
# cores. What fails of the scenarios is kept in soak-failures/, as found and shrunk, and printed.
# `elf simulate --replay FILE` runs it again.
SECONDS ?= 600
soak: $(VENV)/.ready
	ELF_EXAMPLES=all $(BIN)/python -m pytest -q -n auto --dist loadgroup -m hypothesis
	$(BIN)/python -m tests.soak --kept
	$(BIN)/python -m tests.soak $(SECONDS) soak-failures

# Agents beside real web servers, each on a host of its own, under faults for SECONDS of each of SEEDS, as root; LOAD busy loops
# beside them. A seed that has a result in torture-out is not run again. HOSTILE=1 attacks agents instead. docs/torture.md
SEED ?= 1
SEEDS ?= $(SEED)
LOAD ?= 0
HOSTILE ?=
torture: $(VENV)/.ready
	$(BIN)/python -m tests.torture --seconds $(SECONDS) --seeds "$(SEEDS)" --load $(LOAD) $(if $(HOSTILE),--hostile)

# Each against its peers in the same run; an hour, on two cores that do nothing else. Writes the report.
bench: $(VENV)/.ready
	$(BIN)/python benchmarks/all.py --report benchmarks/results.md

# The same scripts on small logs: do they still work?
bench-smoke: $(VENV)/.ready
	$(BIN)/python benchmarks/all.py --smoke

# Rebuild the kernels in place after a change of .pyx or .h.
kernels: $(VENV)/.ready
	$(BIN)/python setup.py -q build_ext --inplace

$(VENV)/.ready: pyproject.toml setup.py $(wildcard */*.pyx */*.pxd */*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[spark,dev]'
	touch $@

clean:
	rm -rf build dist demo-out *.egg-info src/*.egg-info */*.so */*.c
