# Plain `make` lists the targets. All set-up is done by the targets themselves, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET := 1
# Modules are compiled once, by the first process that imports them: hundreds import torch.
unexport PYTHONDONTWRITEBYTECODE
# maturin installs into the environment that is activated, which may be another one.
export VIRTUAL_ENV := $(abspath $(VENV))
unexport CONDA_PREFIX
# A test that hangs ends the run: pytest prints its stacks, and the Rust harness has printed its name after a minute.
CARGO_TEST := cargo test --quiet --no-run && timeout --signal ABRT 900 cargo test --quiet
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help demo quick test stress hosts bench lint docs audit build clean

help: ## List the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/.demo build ## The main job on real input: train, save, reopen, compare (about 6 minutes, output in demo-output/)
	$(BIN)/python -B examples/demo --output demo-output

quick: $(VENV)/.quick build ## The tests that need neither torch nor other frameworks (two to three minutes after the build)
	$(CARGO_TEST)
	$(PYTEST) --quick

test: $(VENV)/.test build ## All tests, Rust and Python, but those of stress
	$(CARGO_TEST)
	$(PYTEST) -m 'not stress' --durations 20

stress: $(VENV)/.test build ## Races with random timing, properties with random examples: another run takes another course
	$(CARGO_TEST) -- --ignored stress
	$(PYTEST) -m stress
	$(PYTEST) -m hypothesis --hypothesis-profile default

hosts: $(VENV)/.test build ## The tests of the plug-ins with vLLM and SGLang themselves (downloads 0.4 GB, unpacks 1.5 GB)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target target/hosts --group hosts
	PYTHONPATH=target/hosts $(BIN)/python -m pytest tests/python/test_plugins.py

bench: $(VENV)/.bench build ## Measure against the rivals (prints tables; `make bench RECORD=1` keeps them in benches/record/)
	cargo bench
	$(BIN)/python benches/compare/run.py $(if $(RECORD),--record)

lint: lint-rust lint-python lint-types ## Formats, lints and types of both languages (side by side with `make --jobs 2 lint`)

.PHONY: lint-rust lint-python lint-types

lint-rust:
	cargo fmt --check
	cargo clippy -- --deny warnings
	cargo clippy --all-targets --features python -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" cargo doc --quiet --no-deps --document-private-items

lint-python: $(VENV)/.lint
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

# What looks at the installed package.
lint-types: $(VENV)/.lint build
	$(BIN)/python -m mypy.stubtest pagestream._native
	$(BIN)/basedpyright --pythonpath $(BIN)/python

docs: $(VENV)/.docs ## The documentation, in target/site; what does not fit is an error
	$(BIN)/zensical build --strict --clean
	$(BIN)/python docs/llms.py target/site

audit: $(VENV)/.lint ## Licences, sources and advisories of the Rust dependencies
	PATH="$(CURDIR)/$(BIN):$$PATH" sh -c 'cargo deny check bans licenses sources && \
		if cargo deny fetch db; then cargo deny check advisories; \
		else echo "NOT CHECKED: the advisory database cannot be reached from here"; fi'

build: $(VENV)/.build ## Build the extension into .venv
	$(BIN)/maturin develop --release --quiet

# What a target needs is installed once, when the target is first asked for. No group is called `dev`:
# `maturin develop` would install it whatever the target.
$(VENV)/.build: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pagestream needs Python 3.11 or newer")'
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group build
	touch $@

# uv unpacks the frameworks in a minute, and pip in seven. uv does not read the configuration of pip.
$(VENV)/.%: $(VENV)/.build
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --group $* || $(BIN)/python -m pip install --quiet --group $*
	touch $@

clean: ## Remove what was built, the demo's output included
	cargo clean
	rm -rf demo-output dist .pytest_cache .mypy_cache .ruff_cache .hypothesis python/pagestream/_native*.so
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
