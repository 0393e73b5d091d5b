#!/bin/sh
# Installs the programs that tests run and pip does not have: kcat, PostgreSQL's server.
# Where that cannot be done it says which tests will be skipped and goes on.
set -eu
missing=""
command -v kcat >/dev/null || missing="$missing kcat"
if ! command -v pg_ctl >/dev/null && ! ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1; then
  missing="$missing postgresql"
fi
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  if apt-get update -qq && apt-get install -qq -y --no-install-recommends $missing >/dev/null; then
    exit 0
  fi
fi
echo "not installed:$missing; the tests that need them are skipped" >&2
