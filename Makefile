.DEFAULT_GOAL := help
.PHONY: help setup system engine demo test test-slow lint docs lock wheel clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## make .venv with the pinned packages; EXTRAS=test,robot,sim for more, TORCH=cpu for no CUDA
	@scripts/setup.sh

system:  ## install the Debian packages that optional parts use
	@scripts/system.sh

engine: setup  ## make .venv-engine with vLLM for this machine's CPU, which tests train through
	@scripts/engine.sh

demo: setup  ## train a tiny model on this machine and report
	.venv/bin/vlrl demo

test: setup system  ## run the quick tests; ARGS="-k jigsaw" to choose
	@scripts/test.sh $(ARGS)

test-slow: setup system engine  ## run the tests that take long or race a clock
	@SLOW=1 scripts/test.sh $(ARGS)

lint: setup  ## check style and types
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/ty check

docs: setup  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

lock: setup  ## resolve requirements.lock anew, keeping what still fits; ARGS=--upgrade for the newest
	@PATH="$(PATH):.venv/bin" uv pip compile pyproject.toml --extra test --extra sims \
		--python-version 3.12 --python-platform x86_64-manylinux_2_28 --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --quiet --output-file requirements.lock $(ARGS)
	@PATH="$(PATH):.venv/bin" uv pip compile requirements-engine.in --override requirements-engine.in \
		--python-version 3.12 --python-platform x86_64-manylinux_2_28 --no-header --no-annotate \
		--no-emit-index-url --no-emit-find-links --quiet --output-file requirements-engine.lock $(ARGS)

wheel: setup  ## build dist/*.tar.gz and dist/*.whl
	@PATH="$(PATH):.venv/bin" uv build --quiet

clean:  ## remove .venv and everything that tools left
	rm -rf .venv .venv-engine build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
