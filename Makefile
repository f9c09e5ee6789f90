# The commands of a developer. CI runs scripts/ci.sh, which calls `check`, `test`, `test-15`, `campaign-ci` and `attack-ci`.
.DEFAULT_GOAL := help
.PHONY: package docs docs-serve screenshots help demo dev test test-15 test-pythons test-long fast campaign campaign-short campaign-ci campaign-files attack attack-ci fuzz mutants bench bench-peers check format reference lock clean setup-run setup-dev setup-docs

VENV := .venv/bin

help:  ## list the commands
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

demo: setup-run  ## set everything up, run the demonstration jobs, show progress and results; STAY=1 leaves everything running
	@$(VENV)/holdfast demo $(if $(STAY),--keep-running)

dev: setup-run  ## start database, API, dashboard and a worker that reloads on save; k kills the worker with -9
	@$(VENV)/holdfast dev

# CI runs the tests that depend on the version of the server a second time, on Debian's PostgreSQL 15.
# Tests wait for processes and servers more than they compute, so more of them run than there are cores.
TEST_PROCESSES := $(shell expr $$(nproc) + 1)
ON_15 := tests/engine/queues $(addprefix tests/engine/test_,access.py cancel.py claim.py dependencies.py finish.py history.py leases.py limits.py schedules.py submit.py)
test: setup-dev  ## run the tests on a real PostgreSQL
	@$(VENV)/pytest -n $(TEST_PROCESSES) --dist worksteal -m "not long"
test-15: setup-dev  ## run the tests that depend on the server version on PostgreSQL 15
	@HOLDFAST_PG_BIN="$$(scripts/postgres15.sh)" $(VENV)/pytest -n $(TEST_PROCESSES) --dist worksteal -m "not long" $(ON_15)
test-pythons: setup-dev  ## run the unit and engine tests on Python 3.13 and 3.14 (root, Debian)
	@scripts/python_versions.sh
test-long: setup-dev  ## run the long tests: killed servers and workers, whole sessions, pages in a browser
	@$(VENV)/pytest -n auto --dist worksteal -m long

fast: setup-dev  ## run the tests that need no server
	@$(VENV)/pytest tests/unit -q

campaign-short: setup-dev  ## run every kind of fault in a short dose; RUNS="kills crashes" selects
	@$(VENV)/python -m campaign $(RUNS) --dose short --parallel 3 --slack inf $(if $(MINUTES),--minutes $(MINUTES))
campaign-ci:  ## run the short doses of CI, with faults for at most a minute each
	@$(MAKE) --no-print-directory campaign-short RUNS="default-kills default-tree-kills default-freezes default-crashes default-mix default-retries" MINUTES=1

campaign: setup-dev  ## run the full fault campaign, hours; SEED=n repeats one, RUNS="kills crashes" selects
	@$(VENV)/python -m campaign --dose full $(if $(SEED),--seed $(SEED)) $(RUNS) --report campaign-report.jsonl

campaign-files: setup-dev  ## kill workers between upload and commit; KILLS=n (default: 500)
	@HOLDFAST_FILE_KILLS=$(or $(KILLS),500) $(VENV)/pytest -n 0 -s -q tests/worker/test_file_kills.py

attack: setup-dev  ## attack the whole product from outside: routes, functions, tokens, forms, pages, links, streams; ONLY="routes tokens" selects
	@$(VENV)/python -m attack --dose full $(if $(ONLY),--only $(ONLY))
attack-ci: setup-dev  ## run the short dose of the attacks
	@$(VENV)/python -m attack --dose short

fuzz: setup-dev  ## send generated requests to every route of the API, an hour; EXAMPLES=n per route (default: 1100)
	@HOLDFAST_FUZZ_EXAMPLES=$(or $(EXAMPLES),1100) $(VENV)/pytest -n 2 -q -rA tests/api/test_fuzz.py

bench: setup-dev  ## compare with the bare SQL statements, most of an hour; PARTS="engine costs worker fleet queues harness api systems bookmarks media clips files dashboard" selects
	@$(VENV)/python -m bench $(PARTS)

bench-peers: setup-dev  ## compare with other queues, about forty minutes; writes docs/explain/benchmarks.md; PARTS=basic,memory and PEERS="pgmq awa" select
	@$(VENV)/python -m bench.peers --write $(if $(PARTS),--parts "$(PARTS)") $(PEERS)

package: setup-dev  ## build the wheel and the sdist; check metadata, every extra from the wheel, and the first command of each
	@$(VENV)/pytest -n $(TEST_PROCESSES) --dist worksteal tests/packaging tests/docs/test_quickstart.py tests/cli/test_templates.py

mutants: setup-dev  ## plant known mistakes in copies of the sources; a test must catch each
	@$(VENV)/python -m campaign.mutants

check: setup-dev  ## lint, format, types, import contract, house rules, retired words
	@scripts/check.sh

format: setup-dev  ## format the code
	@$(VENV)/ruff check --fix-only -q . ; $(VENV)/ruff format -q .

reference: setup-dev  ## write the reference pages and the diagrams of the docs
	@$(VENV)/python scripts/reference.py && $(VENV)/python scripts/diagrams.py

docs: setup-docs  ## build the documentation site into build/site; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs build --strict -q && echo "build/site/index.html"
docs-serve: setup-docs  ## show the documentation site while you write; PORT=n (default: 8800)
	@NO_MKDOCS_2_WARNING=1 $(VENV)/mkdocs serve -a 127.0.0.1:$(or $(PORT),8800)

lock: setup-dev  ## pin the requirements again
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	  -o requirements/uv.txt requirements/uv.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	  -o requirements/patroni.txt requirements/patroni.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra demo --extra bookmarks --extra clips \
	  -o requirements/run.txt pyproject.toml requirements/build.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --extra demo --extra bookmarks --extra clips \
	  -o requirements/dev.txt pyproject.toml requirements/build.in requirements/dev.in requirements/docs.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header -c requirements/dev.txt \
	  -o requirements/docs.txt requirements/docs.in requirements/build.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header -c requirements/dev.txt \
	  -o requirements/release.txt requirements/release.in
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header -c requirements/dev.txt \
	  --extra server --extra files --extra documents --extra telemetry --extra fast \
	  -o requirements/image.txt pyproject.toml
	$(VENV)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header -c requirements/dev.txt \
	  --extra server --extra files --extra documents --extra speech --extra media --extra bookmarks --extra clips --extra telemetry --extra fast \
	  -o requirements/image-systems.txt pyproject.toml

soak: setup-dev  ## run all features together for HOURS (default: 1); fails if memory, bloat or latency grows
	@$(VENV)/python -m bench.soak --hours $(or $(HOURS),1)

release: setup-dev  ## build and check wheel, sdist, SBOM, docs and checksums in dist/
	@$(VENV)/python scripts/release.py

screenshots: setup-dev  ## write screenshots of every dashboard page to screenshots/
	@$(VENV)/python scripts/screenshots.py $(ONLY)

clean:  ## delete the environment and caches, keep the data in .holdfast
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist

setup-run:
	@scripts/setup.sh run
setup-dev:
	@scripts/setup.sh dev
setup-docs:
	@scripts/setup.sh docs
