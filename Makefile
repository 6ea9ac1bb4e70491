# make test   set up .venv and run the linter and the tests
# make demo   set up .venv and generate text with SmolLM2, checked against transformers
# make dev    the same environment, with the project and every plugin in editable form
#
# PYTHON=python3.12   the interpreter to start from        TORCH='torch==2.6.0'   the torch to install
# VENV=.venv          where the environment lies           PYTEST='-k scheduler'  arguments for pytest
# DEMO='--dtype bfloat16 --storage-format page_table'      more arguments for the demo

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
EXTRAS = all,testing,dev,hf,plot

# What a user has configured must not change what is tested.
unexport ATTNLOOM_PLUGINS ATTNLOOM_DISABLE_PLUGINS ATTNLOOM_STRICT ATTNLOOM_RESOLVED_CONFIG
export ATTNLOOM_CONFIG =

.PHONY: help setup lint test demo dev clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup:
	@"$(PYTHON)" scripts/setup_env.py --venv "$(VENV)" --extras $(EXTRAS)

lint: setup
	@"$(BIN)/python" -m ruff check .

# nvcc from pip (350 MB) compiles the device kernels where there is no toolkit, and is itself tested.
test: EXTRAS := $(EXTRAS),cuda
test: setup lint
	ATTNLOOM_CACHE_DIR="$(VENV)/test-cache" "$(BIN)/python" -m pytest $(PYTEST)

demo: setup
	"$(BIN)/attnloom" generate --check --file demo/prompts.txt --max-new-tokens 24 $(DEMO)

dev:
	@"$(PYTHON)" scripts/setup_env.py --venv "$(VENV)" --extras $(EXTRAS) --editable

clean:
	rm -rf "$(VENV)" .pytest_cache .ruff_cache .hypothesis
