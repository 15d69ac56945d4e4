# make figures   every notebook, figure and table        (PROFILE=smoke|quick|paper, CORES=n, SLURM=1)
# make test      lint, types, unit tests, notebooks
# make book      the notebooks, figures and reference as a site, out/book
# All set up .venv themselves; all that has to be there is Python 3.11 or newer.

PYTHON  ?= python3
PROFILE ?= quick
CORES   ?=
# ATARI=cuda (or cpu): train the games of the profile anew, instead of drawing the committed results.
ATARI   ?=
# SLURM=1: every notebook as a job of a Slurm cluster. SNAKEMAKE: further options for Snakemake.
SLURM     ?=
SNAKEMAKE ?=
# LAB: options for JupyterLab, such as LAB="--allow-root --no-browser" in a container.
LAB ?=

VENV  := .venv
PY    := $(VENV)/bin/python
STAMP := $(VENV)/.complete

# The user's shell must not leak into the environment: other packages, other kernels, other targets,
# and byte code that is not kept, so that every process would compile all that it imports.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE PIP_USER PIP_TARGET PIP_PREFIX MPLBACKEND
export JUPYTER_PATH := $(CURDIR)/$(VENV)/share/jupyter

# A moved or copied checkout, or one whose Python has gone, gets a new environment. The folder that the
# environment was made in is read as a variable of make: while it asks a program, by $(shell), a make
# that is process 1 of a container cannot be stopped.
FOLDER  := $(VENV)/.folder
MADE_IN :=
-include $(FOLDER)
ifneq ($(and $(wildcard $(STAMP)),$(realpath $(PY)),$(value MADE_IN)),$(CURDIR))
STALE := stale
endif

.PHONY: help figures test covered test-fast test-random test-units test-quick test-programs lint imports \
  nbval coverage notebooks book lab clean clean-atari stale
.DEFAULT_GOAL := help

help:
	@echo "make figures     run every notebook into out/PROFILE (PROFILE=quick; smoke, paper)"
	@echo "make test        lint, type check, tests, notebooks"
	@echo "make test-fast   the same without slow tests and notebooks: one minute, two the first time"
	@echo "make test-random the same tests with new examples, in a new order"
	@echo "make notebooks   write notebooks/*.ipynb, executed, from notebooks/*.py"
	@echo "make coverage    how much of the core chapters 1 to 6 execute"
	@echo "make lab         the chapters in JupyterLab (LAB=\"--allow-root --no-browser\": its options)"
	@echo "make book        the executed notebooks, figures and reference as a site, out/book"
	@echo "make clean       remove out/ and caches; .venv stays, and networks that were trained"
	@echo "make clean-atari remove these, too"

# exec: a signal to make ends the batch, and the batch all that it has started.
figures: $(STAMP)
	@exec $(PY) workflow/batch.py --profile "$(PROFILE)" $(if $(CORES),--cores "$(CORES)") \
	  $(if $(ATARI),--atari "$(ATARI)") $(if $(SLURM),--slurm) $(if $(SNAKEMAKE),-- $(SNAKEMAKE))

# A thread for each process: two that train with two threads each on two cores wait for each other,
# and take minutes for what takes seconds. Numba has a variable of its own; tests that need threads
# set it.
test test-fast test-random coverage: export OMP_NUM_THREADS = 1
test test-fast test-random coverage: export NUMBA_NUM_THREADS = 1
WORKERS  := 2
PYTEST   := MPLBACKEND=Agg $(PY) -m pytest -p no:nbval -p no:randomly
PROGRAMS := $(patsubst %,tests/test_%.py,batch_slurm batch batch_games batch_refusals book site lab)
# What was skipped is said last of all. exec: a signal to make ends all that it has started.
test test-fast: export SKIPPED_TESTS = out/skipped.txt
SUITE := exec $(PY) $(dir $(firstword $(MAKEFILE_LIST)))workflow/suite.py
# Tests that start programs and wait for them run beside all else, so that no core is idle. The units
# come after the notebooks: they find what Numba has compiled for those.
ALL := covered
test: $(STAMP)
	@rm -f .coverage .coverage.*
	@$(SUITE) $(MAKE) --no-print-directory -j 3 IMPORTED=imports $(ALL)

covered: lint nbval test-programs test-units
	@$(PY) -m coverage combine -q
	@echo "Of the core, its own tests execute $$($(PY) -m coverage report --format=total)%"

# A new environment has no byte code: one process makes it, before four start together and each do so.
imports: $(STAMP)
	@$(PY) -c "import nbval, papermill, scipy.stats, seaborn, snakemake.cli, sphinx.cmd.build, torch"

test-units: nbval
	PYTHONPATH=tests $(PYTEST) -p core_coverage -n $(WORKERS) --dist worksteal $(PROGRAMS:%=--ignore %)

# The longest first, so that no process is left alone with one at the end.
test-programs: $(STAMP) $(IMPORTED)
	$(PYTEST) -n $(WORKERS) --dist worksteal $(PROGRAMS)

# New examples in a new order. The header names the order, and --randomly-seed=N repeats it.
test-random: $(STAMP)
	RANDOM_TESTS=1 $(subst -p no:randomly,,$(PYTEST)) -n $(WORKERS) --dist worksteal

# Every committed notebook as it stands; its claims and their verdicts are compared with the committed
# ones, their numbers are not: some depend on the processor. A cell that hangs is ended after an hour:
# chapter 5 trains for a quarter of a minute, and for a quarter of an hour on an emulated processor.
NOTEBOOKS = notebooks/*.ipynb
nbval: $(STAMP) $(IMPORTED)
	PYTHONPATH=workflow $(PY) -m pytest -p no:randomly -p nbval_kernels -n $(WORKERS) --dist loadfile \
	  --nbval-lax --nbval-current-env --nbval-cell-timeout=3600 --nbval-sanitize-with workflow/nbval.cfg \
	  $(NOTEBOOKS)

FAST := lint test-quick
test-fast: $(STAMP)
	@$(SUITE) $(MAKE) --no-print-directory -j 2 $(FAST)

test-quick: $(STAMP)
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "not slow"

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-cache --no-logo
	@$(PY) benchmarks/size.py

# How much of the core the paper's chapters execute: it fails below the share that pyproject.toml names.
coverage: $(STAMP)
	@rm -f .coverage .coverage.*
	@for chapter in notebooks/0[1-6]_*.py; do echo $$chapter; \
	  MPLBACKEND=Agg $(PY) -m coverage run $$chapter > /dev/null || exit 1; done
	@$(PY) -m coverage combine --quiet && $(PY) -m coverage report

notebooks: $(STAMP)
	$(PY) workflow/pair.py

book: $(STAMP)
	@$(PY) book/build.py

lab: $(STAMP)
	@exec $(PY) -m jupyterlab --config=workflow/lab.py $(LAB) notebooks/00_start_here.ipynb

# The stamp is removed first and written last: whatever stops this rule, the next make starts afresh.
# New pins go into an environment that was whole; anything else is made from nothing. uv installs in a
# quarter of pip's time; it is told of the package index and the wheels that pip has been set up with.
uv_setting = UV_$(1)="$${UV_$(1):-$${PIP_$(2):-$$($(PY) -m pip config get global.$(3) 2>/dev/null)}}"
$(STAMP): pyproject.toml constraints.txt $(STALE)
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "error: '$(PYTHON)' is not Python 3.11 or newer; try: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) (once: half a minute to three minutes, 2 to 6 GB)"
	@if [ -n "$(STALE)" ]; then rm -f $@ $(FOLDER); $(PYTHON) -m venv --clear $(VENV); fi
	@rm -f $@ $(FOLDER)
	@$(PY) -m pip install --quiet --disable-pip-version-check "uv==0.13.7"
	@$(call uv_setting,DEFAULT_INDEX,INDEX_URL,index-url) \
	  $(call uv_setting,FIND_LINKS,FIND_LINKS,find-links) \
	  $(PY) -m uv pip install --quiet --python $(PY) -c constraints.txt -e ".[all]"
	@printf 'define MADE_IN\n%s\nendef\n' "$(CURDIR)" > $(FOLDER)
	@touch $@

# Trained networks took days: only clean-atari removes them. Snakemake's notes say what they were made with.
# `out` may be a link, which stays.
clean:
	rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	@for path in out/* out/.[!.]*; do if [ ! -d "$$path/atari" ]; then rm -rf "$$path"; fi; done
	@for path in out/*/* out/*/.[!.]*; do \
	  case "$$path" in */atari | */.snakemake) ;; *) rm -rf "$$path" ;; esac; done
	@rmdir out 2>/dev/null || if ls -d out/*/atari 2>/dev/null; then \
	  echo "are kept: trained networks, which make clean-atari removes"; fi

clean-atari:
	rm -rf out/*/atari
