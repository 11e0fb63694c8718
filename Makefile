# `make demo` and `make test` each do all their own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test kernels bench clean

$(VENV)/.ready: pyproject.toml setup.py $(wildcard */*.pyx */*.pxd */*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[spark,dev]'
	touch $@

kernels:
	$(BIN)/python setup.py -q build_ext --inplace

test: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q

demo: $(VENV)/.ready
	$(BIN)/elf demo

clean:
	rm -rf build dist *.egg-info */*.so
