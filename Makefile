# Two commands do everything: `make serve` and `make test`. Both make .venv first if need be.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CPP := src/twostroke/kernels/cpp
KERNELS := hatch_build.py $(wildcard $(CPP)/*.?pp $(CPP)/*/*.?pp)
PIP := $(BIN)/python -m pip --disable-pip-version-check
CLIENTS := .venv-clients
TRITON := .venv-triton
# Apart from the other tests' settings; Triton's interpreter warns of numpy's ways.
ON_GPU := -q -c /dev/null --rootdir=. --confcutdir=tests/layers/gpu --import-mode=importlib \
    -W ignore::DeprecationWarning -W ignore::RuntimeWarning
APART := tests/server/clients/apart
# Fuzzed bodies are the same each time only with the same modules loaded and one order of sets.
FUZZED := tests/server/test_schemathesis.py tests/server/test_schemathesis_gateway.py
STYLE := tests/test_architecture.py tests/test_documents.py tests/test_reading_list.py
PORT ?= 8000
MODEL ?= pilot
FLEET ?= deploy/fleet.toml

.DEFAULT_GOAL := help
.PHONY: help serve fleet workers route test clients kernels check format train claims soak clean

help: ## Show the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

serve: $(VENV)/.installed ## Install, and serve MODEL (pilot) on 127.0.0.1:PORT (8000), with FLAGS
	$(BIN)/twostroke serve $(MODEL) --port $(PORT) $(FLAGS)

fleet: $(VENV)/.installed ## Install, and serve the pools of FLEET (deploy/fleet.toml)
	$(BIN)/twostroke up --local --config $(FLEET) --port $(PORT) $(FLAGS)

workers: $(VENV)/.installed ## Install, and start two workers of MODEL on ports 8101 and 8102
	pids=; trap 'kill $$pids' INT TERM; for port in 8101 8102; do \
	    $(BIN)/twostroke worker $(MODEL) --listen 127.0.0.1:$$port $(FLAGS) & \
	    pids="$$pids $$!"; done; wait; wait

route: $(VENV)/.installed ## Serve what the two workers compute on 127.0.0.1:PORT (8000)
	$(BIN)/twostroke route $(MODEL) --worker 127.0.0.1:8101 --worker 127.0.0.1:8102 \
	    --port $(PORT) $(FLAGS)

test: $(VENV)/.installed-dev ## Install what tests need, and run them all
	$(BIN)/python -m pytest -n 3 --dist loadfile $(FUZZED:%=--ignore=%)
	PYTHONHASHSEED=0 $(BIN)/python -m pytest $(FUZZED)

clients: $(VENV)/.installed-dev ## Install clients of other versions apart (1.3 GB), test them
	test -d $(CLIENTS) || $(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --constraint $(APART)/constraints.txt \
	    litellm llama-index-llms-openai-like instructor mcp cohere
	if command -v npm >/dev/null; then mkdir -p $(CLIENTS)/npm \
	    && cp $(APART)/package.json $(CLIENTS)/npm/ \
	    && npm install --prefix $(CLIENTS)/npm --no-audit --no-fund \
	    && node $(CLIENTS)/npm/node_modules/@anthropic-ai/claude-code/install.cjs; fi
	$(BIN)/python -m pytest tests/server/clients/test_apart.py \
	    tests/server/clients/test_cli_agents.py

kernels: $(VENV)/.installed-dev ## Install Triton apart (290 MB); check its kernels without a GPU
	test -d $(TRITON) || $(PYTHON) -m venv $(TRITON)
	grep -v '^numpy==' constraints.txt >$(TRITON)/constraints.txt
	$(TRITON)/bin/python -m pip install --constraint $(TRITON)/constraints.txt \
	    -e . pytest hypothesis 'numpy<2.4'
	$(TRITON)/bin/python -m pip install --no-deps 'triton==3.6.0'
	PYTHONPATH=. $(TRITON)/bin/python -m pytest $(ON_GPU) tests/layers/gpu/test_offline.py
	PYTHONPATH=. TRITON_INTERPRET=1 $(TRITON)/bin/python -m pytest $(ON_GPU) tests/layers/gpu

# Without ruff's cache: it does not see that a new folder changes which imports are our own.
check: $(VENV)/.installed-dev ## Lint, format, style, the arrows between packages, types
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest $(STYLE)
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## Mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

train: $(VENV)/.installed-dev ## Train pilot and pilot-draft anew (an hour on 2 cores), measure both
	sh training/train.sh

claims: $(VENV)/.installed-dev ## Measure what the README claims, and try the field's claims
	$(BIN)/python -m benchmarks.claims

soak: $(VENV)/.installed-dev ## Treat a server badly for 20 minutes; it must stay as it was
	$(BIN)/python -m benchmarks.soak

clean: ## Remove .venv and caches
	rm -rf $(VENV) $(CLIENTS) $(TRITON) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache

# A stamp, not bin/python: a venv that was left half-made would look finished.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; version = sys.version.split()[0]; sys.exit( \
	    "error: twostroke needs Python 3.11 or newer, this is " + version + \
	    "\n\nhint: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); printf \
	    'error: cannot make %s\n\nhint: on Debian or Ubuntu, install python3-venv\n' \
	    $(VENV) >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt $(KERNELS)
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@
