#!/bin/sh
# Installs the programs that tests run and pip does not have: kcat, the shells zsh and fish,
# PostgreSQL's server, PgBouncer, Chromium for the pages of the console, and a Java with its compiler for Spark and tests/java (the first of those new enough that this system has).
# Where that cannot be done it says which tests will be skipped and goes on.
set -eu
missing=""
for program in kcat zsh fish chromium; do
  command -v "$program" >/dev/null || missing="$missing $program"
done
if ! command -v pg_ctl >/dev/null && ! ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1; then
  missing="$missing postgresql"
fi
command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing="$missing pgbouncer"
java=""
command -v java >/dev/null || [ -x "${JAVA_HOME:-none}/bin/java" ] || java=" java"
[ -n "$missing$java" ] || exit 0

install() {
  apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  if apt-get update -qq; then
    if [ -n "$missing" ] && install $missing; then missing=""; fi
    for version in 17 21 25; do
      if [ -n "$java" ] && install "openjdk-$version-jdk-headless" 2>/dev/null; then java=""; fi
    done
  fi
fi
[ -z "$missing$java" ] || echo "not installed:$missing$java; the tests that need them are skipped" >&2
