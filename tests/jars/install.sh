#!/bin/sh
# Fetches the jars of a pom.xml by Maven into $KAFKAWIRE_TEST_HOME (~/.cache/kafkawire-tests):
# `install.sh tables` those by which Spark reads tables, `install.sh catalog` a REST catalog; both
# without an argument. Does nothing when they are there; prints their folder. Called by make test
# and tests/kit/jars.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

install() {
  pom=$1 home=${KAFKAWIRE_TEST_HOME:-$HOME/.cache/kafkawire-tests}/$2 more=$3
  want=$(cksum < "$pom")
  if [ "$(cat "$home/installed" 2>/dev/null)" != "$want" ]; then
    rm -rf "$home"
    mkdir -p "$home"
    mvn -q -B -ntp -f "$pom" dependency:copy-dependencies \
      -DoutputDirectory="$home/libs" $more >&2
    echo "$want" > "$home/installed"
  fi
  echo "$home/libs"
}

[ $# -gt 0 ] || set -- tables catalog
for which in "$@"; do
  case $which in
    tables) install "$here/pom.xml" tables -DexcludeTransitive=true ;; # the rest Spark brings
    catalog) install "$here/catalog/pom.xml" catalog "" ;;
  esac
done
