# The whole developer surface. CI calls `make check test` and nothing else.
.DEFAULT_GOAL := help
.PHONY: screenshots help demo dev test test-18 test-15 test-long fast campaign campaign-short campaign-ci campaign-files fuzz mutants bench bench-peers check format reference lock clean setup-run setup-dev

VENV := .venv/bin

help:  ## what there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: setup-run  ## set everything up, run the demonstration jobs, show their progress and results
	@$(VENV)/holdfast demo

dev: setup-run  ## database, API, dashboard, a worker that reloads on save, sample jobs; k kills it with -9
	@$(VENV)/holdfast dev

# In CI what depends on the server's version runs a second time, on Debian's PostgreSQL 15, and then things are broken.
ON_15 := tests/engine/queues $(addprefix tests/engine/test_,access.py cancel.py claim.py dependencies.py finish.py history.py leases.py limits.py schedules.py submit.py)
test: test-18 $(if $(CI),test-15 campaign-ci)  ## the tests, on a real PostgreSQL
test-18: setup-dev
	@$(VENV)/pytest -n auto --dist worksteal -m "not long"
test-15: setup-dev
	@HOLDFAST_PG_BIN="$$(scripts/postgres15.sh)" $(VENV)/pytest -n auto --dist worksteal $(ON_15)
test-long: setup-dev  ## those that kill servers and workers again and again, whole sessions, pages in a browser
	@$(VENV)/pytest -n auto --dist worksteal -m long

fast: setup-dev  ## the tests that need no server
	@$(VENV)/pytest tests/unit -q

campaign-short: setup-dev  ## every kind of fault in a small dose, and a thousand kills; five minutes on two cores
	@$(VENV)/python -m campaign $(RUNS) --dose short --parallel 3 --slack inf
campaign-ci:
	@$(MAKE) --no-print-directory campaign-short RUNS="kills crashes"

campaign: setup-dev  ## the whole fault campaign, hours; SEED=n repeats one, RUNS="kills crashes" chooses
	@$(VENV)/python -m campaign --dose full $(if $(SEED),--seed $(SEED)) $(RUNS) --report campaign-report.jsonl

campaign-files: setup-dev  ## kill -9 between upload and commit, five hundred times; KILLS=n for another number
	@HOLDFAST_FILE_KILLS=$(or $(KILLS),500) $(VENV)/pytest -n 0 -s -q tests/worker/test_file_kills.py

fuzz: setup-dev  ## a hundred thousand generated requests to every route of the API, an hour; EXAMPLES=n of each route
	@HOLDFAST_FUZZ_EXAMPLES=$(or $(EXAMPLES),1100) $(VENV)/pytest -n 2 -q -rA tests/api/test_fuzz.py

bench: setup-dev  ## what it does next to the bare statements, most of an hour; PARTS="engine worker queues api systems files dashboard" chooses
	@$(VENV)/python -m bench $(PARTS)

bench-peers: setup-dev  ## the same work by the other queues, installed on demand, side by side, about forty minutes; writes docs/explain/benchmarks.md; PARTS=basic,memory and PEERS="pgmq awa" choose
	@$(VENV)/python -m bench.peers --write $(if $(PARTS),--parts "$(PARTS)") $(PEERS)

mutants: setup-dev  ## plant known mistakes in copies of the sources; each must be caught
	@$(VENV)/python -m campaign.mutants

check: setup-dev  ## lint, format, types, import contract, house rules
	@scripts/check.sh

format: setup-dev  ## rewrite the code in the house style
	@$(VENV)/ruff check --fix-only -q . ; $(VENV)/ruff format -q .

reference: setup-dev  ## write the reference pages of the docs from the code
	@$(VENV)/python scripts/reference.py

lock: setup-dev  ## pin the requirements again
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	  -o requirements/uv.txt requirements/uv.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra dev \
	  -o requirements/run.txt pyproject.toml requirements/build.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra dev \
	  -o requirements/dev.txt pyproject.toml requirements/build.in requirements/dev.in

screenshots: setup-dev  ## pictures of every page of the dashboard, into screenshots/
	@$(VENV)/python scripts/screenshots.py $(ONLY)

clean:  ## forget the environment and caches, keep the data in .holdfast
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist

setup-run:
	@scripts/setup.sh run
setup-dev:
	@scripts/setup.sh dev
