# One command per question; see CONTRIBUTING.md. Needs make, git and a Python of at least 3.11.
#
#   make run     a broker on 127.0.0.1:9092     make test    every test
#   make check   lint, types, fast tests        make bench   speed
#   make sim     the simulation, SEEDS=500      make docs    what is generated in docs/, checks
#   make trials  hostile trials of whole brokers, MINUTES=30 SEED=<random>
#   make dist    wheels and sdists of kafkawire and kafkawire-spark in dist/
#   make fast    compiles the hot modules in place    make slow    removes the compiled modules
#   make test-fast    compiles, and runs the tests of the layers that have compiled modules
#   make test-spark SPARK=4.3    tests of the pipeline with another version of Spark
#
# An install step runs again only when its inputs have changed: each leaves a stamp in .venv.

SHELL := /bin/sh
BIN := .venv/bin
SEEDS ?= 500
MINUTES ?= 30
# Processes of tests; auto: one for each core. Three on two cores take 52 minutes instead of 61, but
# then tests of CPU time for the event loop fail at times.
WORKERS ?= auto
SEED ?=
SPARK ?= 4.3
ARGS ?=

# Images of containers often forbid bytecode; every worker and every child process of the tests
# would then compile all it imports: a quarter of the CPU time of `make check`.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := run
.PHONY: run test test-of test-spark check trials bench bench-peers bench-clients bench-guard sim docs dist wheels clean java minio \
  azurite axe programs fast slow test-fast

run: .venv/.installed
	$(BIN)/kafkawire serve $(ARGS)

test: .venv/.dev .venv/.system java minio azurite axe programs .venv/spark-classes.jsa
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --durations=20 $(ARGS)

# `make test-of kafkawire/log/append`: the fast tests of a module or folder.
test-of: .venv/.dev
	@$(BIN)/python -m tests.of $(filter-out test-of,$(MAKECMDGOALS)) $(ARGS)

# Tests that start Spark, with another version of it, without those of Delta's and Iceberg's jars,
# which exist for 4.2. Not part of `make test`: it downloads 450 MB.
test-spark: .venv/spark-$(SPARK)/spark-classes.jsa
	.venv/spark-$(SPARK)/bin/python -m pytest -q -n auto --dist worksteal -m "real and not java" \
	  tests/spark --ignore tests/spark/tables $(ARGS)

# Where 4 GiB are free in memory the folders of tests are there: fsync is a tenth of the time.
check: FOLDERS = $(shell df -Pk /dev/shm 2> /dev/null | \
  awk 'NR == 2 && $$4 > 4194304 {print "TMPDIR=/dev/shm"}')
check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	SIM_SEEDS=3 HYPOTHESIS_PROFILE=quick $(FOLDERS) \
	  $(BIN)/python -m pytest -q -n auto --dist worksteal -m "not real and not java and not slow" \
	    --ignore tests/real --ignore tests/java $(ARGS)

sim: .venv/.dev
	SIM_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q -n auto $$(find tests -name "test_*simulation*.py") $(ARGS)

trials: .venv/.dev
	$(BIN)/python -m tests.trials --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: .venv/.bench
	$(BIN)/python -m bench $(ARGS)

bench-peers: .venv/.bench
	$(BIN)/python -m bench.peers $(ARGS)

bench-clients: .venv/.bench
	$(BIN)/python -m bench.clients $(ARGS)

bench-guard: .venv/.bench
	$(BIN)/python -m bench.guard $(ARGS)

docs: .venv/.dev
	$(BIN)/python docs/generate.py
	$(BIN)/python -m pytest -q tests/test_docs.py tests/test_words.py

# The sdist first, then the wheel from it: a file missing in the sdist fails here.
# The wheels with compiled modules, for each CPython on Linux, in containers of manylinux.
wheels: .venv/.dev
	$(BIN)/python -m pip install --quiet cibuildwheel==4.3.5
	$(BIN)/python -m cibuildwheel --output-dir dist

dist: .venv/.dev
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m build --no-isolation --outdir dist spark

# Next to the sources, which Python then does not read: a change takes effect after the next
# `make fast`, or after `make slow`. The tests refuse to run with modules older than their source.
fast: .venv/.dev
	@echo "Compiling the hot modules, one to three minutes. Back to pure Python: make slow"
	KAFKAWIRE_COMPILE=3 $(BIN)/python setup.py --quiet build_ext --inplace --force
	@$(BIN)/kafkawire version

slow:
	find kafkawire kafkawire__mypyc* -name "*.so" -delete 2> /dev/null || true

test-fast: fast
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not java and not slow" \
	  $(addprefix tests/,broker codec groups handlers log offsets server tiering transactions) $(ARGS)

clean: slow
	rm -rf .venv build dist *.egg-info spark/build spark/*.egg-info .pytest_cache .mypy_cache \
	  .ruff_cache .hypothesis .import_linter_cache bench/out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first Python that is new enough; a name may exist and not work (pyenv's shims), so it is run.
.venv/bin/python:
	@for name in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14 python; do \
	  if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    found=$$name; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "kafkawire needs Python 3.11 or newer; none was found (make PYTHON=/path/to/python3)"; \
	  exit 1; \
	fi; \
	sh .ci/venv.sh "$$found" .venv

# pip shows what it downloads, as the first time takes minutes.
.venv/.installed: pyproject.toml | .venv/bin/python
	@echo "Installing kafkawire into .venv, once: half a minute to two"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --editable '.[cluster]'
	@touch $@

.venv/.dev: pyproject.toml spark/pyproject.toml | .venv/bin/python
	@echo "Installing what the tests need into .venv, once: two to five minutes"
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --editable '.[dev]' --editable ./spark
	@touch $@ .venv/.installed

.venv/.bench: pyproject.toml .venv/.dev
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench]' --editable ./spark
	@touch $@

# What pip does not have: kcat, zsh, fish, PostgreSQL, Chromium and a Java, from Debian, where this may be done.
.venv/.system: .ci/system.sh | .venv/bin/python
	@echo "Installing programs of Debian that tests use, once"
	@sh .ci/system.sh
	@touch $@

# Apache Kafka's own tools, Delta's and Iceberg's code for Spark, where there is a Java to run them.
java: | .venv/bin/python
	@if command -v java >/dev/null && command -v mvn >/dev/null; then \
	  for jars in tables catalog kafka kafka-4.4; do \
	    echo "Jars of tests/jars/$$jars: downloaded once"; \
	    sh tests/jars/install.sh $$jars >/dev/null || echo "no jars of tests/jars/$$jars"; \
	  done; \
	else echo "no Java or no Maven here: tests marked java are skipped"; fi

# The classes of Spark in a form that a JVM loads at half of the cost, where there is a Java.
.venv/spark-classes.jsa: .venv/.dev tests/kit/spark/class_archive.py
	@$(BIN)/python -m tests.kit.spark.class_archive

# The environment of `make test-spark`: a version of Spark, all other packages from .venv.
.venv/spark-$(SPARK)/.installed: .ci/spark.sh .venv/.dev
	@echo "Installing Spark $(SPARK) into $(@D), once: one to three minutes"
	@sh .ci/spark.sh $(BIN)/python $(SPARK) $(@D)
	@touch $@

.venv/spark-$(SPARK)/spark-classes.jsa: .venv/spark-$(SPARK)/.installed tests/kit/spark/class_archive.py
	@$(@D)/bin/python -m tests.kit.spark.class_archive

# An object storage: from docker, from PATH, or built once with Go. The file says how.
minio: .venv/.dev
	$(BIN)/python -m tests.kit.minio

# The emulator of Azure Blob Storage, where there is npm.
azurite: | .venv/bin/python
	@sh tests/programs/azurite.sh >/dev/null || echo "no Azurite: its tests are skipped"

# axe-core, which finds barriers for people with disabilities in pages, where there is npm.
axe: | .venv/bin/python
	@sh tests/programs/axe.sh >/dev/null || echo "no axe-core: its tests are skipped"

# Programs with clients in Go and Rust, and Helm, where there is Go or Cargo to build them with,
# once, and Prometheus' promtool from Debian.
programs:
	@for each in franz-go:go rdkafka:cargo helm:go; do \
	  if command -v $${each#*:} >/dev/null; then \
	    echo "Program of tests/programs/$${each%:*}: built once, one to five minutes"; \
	    sh tests/programs/install.sh $${each%:*} >/dev/null || echo "no program of $${each%:*}"; \
	  else echo "no $${each#*:} here: the test of $${each%:*} is skipped"; fi; \
	done
	@sh tests/programs/promtool.sh >/dev/null || echo "no promtool: its tests are skipped"
