# One entry point. Every target prepares .venv by itself; the second time that is a stamp check.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes
PEER    = $(PYTHON) -m venv --without-pip $(@D) && $(BIN)/python -m pip --python $(@D)/bin/python --disable-pip-version-check install --quiet --require-hashes
RUN    := $(VENV)/.run
DEV    := $(VENV)/.dev
IGGY   := $(foreach version,0.5.0 0.6.0 0.7.0 0.8.0 0.9.0,$(VENV)/peers/iggy-$(version)/.done)
SPARKS := $(VENV)/peers/spark-4.2/.done $(VENV)/peers/spark-client/.done

.PHONY: demo test quick check format bench soak docs release clean servers
.DELETE_ON_ERROR:

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "headrace needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(RUN): $(BIN)/python requirements/run.txt pyproject.toml
	@echo "Installing Spark, Arrow, a Java runtime and the rest into $(VENV) (about 700 MB to download, once)"
	$(PIP) -r requirements/run.txt
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): $(RUN) requirements/dev.txt
	@echo "Installing the development tools into $(VENV)"
	$(PIP) -r requirements/dev.txt
	@touch $@

# Real Iggy clients live in environments of their own, as their users have them.
$(VENV)/peers/iggy-%/.done: $(BIN)/python requirements/iggy-%.txt
	@echo "Installing apache-iggy $* from PyPI into $(@D)"
	$(PEER) -r requirements/iggy-$*.txt
	@touch $@

# An older Spark, and Spark's client without a Spark; the tests put headrace on their path.
$(VENV)/peers/spark-%/.done: $(BIN)/python requirements/spark-%.txt
	@echo "Installing requirements/spark-$*.txt into $(@D)"
	$(PEER) -r requirements/spark-$*.txt
	@touch $@

# What tests start themselves comes from Debian's packages (command:package).
PEERS := etcd:etcd-server initdb:postgresql chromium:chromium tshark:tshark

servers:
	@have() { command -v $$1 || ls /usr/lib/postgresql/*/bin/$$1; } >/dev/null 2>&1; \
	install() { DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$1; }; \
	for peer in $(PEERS); do \
	  have $${peer%:*} && continue; package=$${peer#*:}; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing $$package from Debian's packages"; \
	    install $$package >/dev/null 2>&1 || { apt-get update -qq && install $$package; } >/dev/null || true; \
	  fi; \
	  have $${peer%:*} || { echo "the tests need a real $${peer%:*}; install it with: sudo apt-get install $$package" >&2; exit 2; }; \
	done

demo: $(RUN) $(VENV)/peers/iggy-0.8.0/.done
	$(BIN)/headrace demo

# Two lanes at the same time, about as long as each other. In the background what mostly computes,
# giving way, then pipelines that start a Spark for each of their parts and wait for it, and the
# pages; its output follows. Here what looks at the clock, while nothing else that runs has a claim,
# then Spark.
COMPUTING := tests/unit tests/property tests/conformance tests/sim tests/fuzz
PIPELINES := $(addprefix tests/integration/test_,containers.py demo.py pipeline_cli.py)
PAGES     := tests/browser
RUNNING   := tests/integration tests/spark
PYTEST    := $(BIN)/python -m pytest

test: $(DEV) $(IGGY) $(SPARKS) servers
	@echo "Running $(COMPUTING), then $(PIPELINES) $(PAGES), in the background;" \
	  "the rest of $(RUNNING) here"; \
	( trap 'kill $$!; exit 1' TERM; \
	  nice -n 10 $(PYTEST) $(COMPUTING) --timeout 600 & wait $$!; computing=$$?; \
	  $(PYTEST) $(PIPELINES) $(PAGES) & wait $$!; exit $$((computing | $$?)) \
	) > $(VENV)/.background.txt 2>&1 & background=$$!; trap 'kill $$background' INT TERM; \
	$(PYTEST) $(RUNNING) $(addprefix --ignore=,$(PIPELINES)); running=$$?; \
	wait $$background; background=$$?; cat $(VENV)/.background.txt; \
	exit $$((running | background))

# Less than a minute: what changed since main (or BASE=), and what is fast anyway.
quick: $(DEV)
	@$(BIN)/python -m tests.quick

check: $(DEV)
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.structure
	$(BIN)/python -m tests.generated_pages --check

format: $(DEV)
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

bench: $(DEV) $(IGGY) servers
	$(BIN)/python -m benchmarks

soak: $(DEV) $(IGGY) $(SPARKS) servers
	HEADRACE_SOAK=1 $(BIN)/python -m pytest tests -m "soak or not soak" --timeout 7200

docs: $(DEV)
	$(BIN)/python -m tests.generated_pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel and the sdist in dist/, tried in an empty environment for each of these.
PYTHONS ?= 3.11 3.12 3.13 3.14

release: $(DEV)
	$(BIN)/python -m tests.release --pythons "$(PYTHONS)"

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
