# Berth. `make up` is all a person needs; `make` alone lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.berth-run
DEV_STAMP := $(VENV)/.berth-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes

.DEFAULT_GOAL := help
.PHONY: help install up down doctor check lint types test fuzz sbom audit bench chaos engine messages

help: ## list these commands
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

install: $(RUN_STAMP) ## install what is locked, and start nothing

# `exec`, so that TERM to make reaches the panel and not a shell in between.
up: $(RUN_STAMP) ## install what is locked, start everything, print one address
	@exec $(BIN)/python manage.py up

down: $(RUN_STAMP) ## stop everything, engines too
	@exec $(BIN)/python manage.py down

doctor: $(RUN_STAMP) ## check everything the panel needs, one line each
	@exec $(BIN)/python manage.py doctor

check: lint types ## lint, import contracts, types, the quick tests without servers (minutes)
	@exec $(BIN)/pytest -q -n 2 -m "not slow and not integration and not browser and not engine"

test: lint types ## all tests: with servers, in a browser, with a real engine
	@exec $(BIN)/python -m tests.run

lint: $(DEV_STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check . ; exit 1; }
	@$(BIN)/lint-imports

types: $(DEV_STAMP)
	@$(BIN)/mypy

bench: $(DEV_STAMP) ## measure start, memory, delays, long lists, a crowd and the door's cost
	@exec $(BIN)/python -m benchmarks

# SEED is the first seed, RUNS how many, SCALE multiplies all times (1: those of a panel without settings).
chaos: $(DEV_STAMP) ## break everything at chosen moments, hundreds of times (SEED=0 RUNS=600 SCALE=0.1)
	@rm -f test-output/chaos.jsonl
	@$(BIN)/python -m tests.chaos --seed $(or $(SEED),0) --runs $(or $(RUNS),600) --scale $(or $(SCALE),0.1); code=$$?; \
	$(BIN)/python -m tests.chaos.report test-output/chaos.jsonl; exit $$code
	@BERTH_CHAOS_SEED=$(or $(SEED),0) BERTH_CHAOS_EXAMPLES=100 BERTH_CHAOS_STEPS=50 $(BIN)/pytest -q tests/chaos/model

fuzz: $(DEV_STAMP) ## send odd input to every page, operation and message; BERTH_TEST_FUZZ says how often (1000)
	@BERTH_TEST_FUZZ=$${BERTH_TEST_FUZZ:-1000} $(BIN)/pytest -q -p no:cacheprovider tests/security tests/api/test_contract.py -k "fuzz or lying or contract or orders"

sbom: $(RUN_STAMP) ## print what Berth is made of (CycloneDX, JSON)
	@exec $(BIN)/python -m panel.sbom write

audit: $(RUN_STAMP) ## look for known vulnerabilities of the locked packages (needs a network)
	@exec $(BIN)/python -m panel.sbom audit

engine: $(RUN_STAMP) ## prepare vLLM (CPU) and a small model, for tests and for a machine without GPU
	@exec $(BIN)/python -m panel.fleet.agent.engine_cpu
	@exec $(BIN)/python manage.py look

messages: $(DEV_STAMP) ## collect and compile the texts of all languages (needs gettext)
	@command -v msgfmt >/dev/null || { echo "The system package gettext is absent. Debian, Ubuntu: apt install gettext" >&2; exit 1; }
	@$(BIN)/python manage.py makemessages --locale zh_Hans --ignore .venv --ignore var --ignore tests --ignore test-output --no-wrap --no-location --no-obsolete
	@$(BIN)/python manage.py compilemessages --ignore .venv

$(BIN)/python:
	@py=; for name in $(PYTHON) python3.13 python3.12 python3.11; do \
	  if command -v $$name >/dev/null 2>&1 && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then py=$$name; break; fi; \
	done; \
	if [ -z "$$py" ]; then echo "Berth needs Python 3.11 or newer. Install it, or name it: make up PYTHON=/path/to/python3" >&2; exit 1; fi; \
	if ! $$py -c 'import ensurepip, venv' 2>/dev/null; then \
	  package=$$($$py -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  echo "A system package is absent: $$package. Debian, Ubuntu: apt install $$package" >&2; exit 1; \
	fi; \
	echo "Making a virtual environment in $(VENV) …"; \
	$$py -m venv $(VENV)

# The lock file decides: when it changes, the next command installs anew.
$(RUN_STAMP): requirements.lock | $(BIN)/python
	@echo "Installing the locked packages …"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip --upgrade >/dev/null
	@$(BIN)/python -m panel.lock select agent panel embedded > $(VENV)/wanted.txt
	@$(PIP) -r $(VENV)/wanted.txt
	@touch $@

$(DEV_STAMP): requirements.lock | $(RUN_STAMP)
	@echo "Installing the packages for development …"
	@$(BIN)/python -m panel.lock select dev > $(VENV)/wanted-dev.txt
	@$(PIP) -r $(VENV)/wanted-dev.txt
	@touch $@
