# With nothing but Python 3.11, pip and make: `make demo`, `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test check bench bench-others clean

help:
	@echo "make demo   breast tumours, three decisions about each, end to end, into demo/"
	@echo "make test   all tests (data sets are read from STAKES_DATA where it is set; the report needs Node and Chromium)"
	@echo "make check  ruff, ruff format, mypy --strict"
	@echo "make bench  the measured claims of benchmarks/"
	@echo "make bench-others  stakes beside other libraries, which are installed into .cache/"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stakes needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/stakes demo --out demo --force

test: $(READY)
	$(BIN)/python -m pytest -n auto

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

bench-others:
	$(PYTHON) -m benchmarks.others --save

clean:
	rm -rf $(VENV) .cache demo .mypy_cache .pytest_cache .ruff_cache
