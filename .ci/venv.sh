#!/bin/sh
# venv.sh PYTHON FOLDER: a virtual environment with pip. Debian keeps what that needs in a package
# of its own, so as root it is installed where it is missing.
set -eu
python=$1 folder=$2
rm -rf "$folder"
if "$python" -m venv "$folder" >/dev/null 2>&1; then exit 0; fi
rm -rf "$folder"
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -qq -y --no-install-recommends "python$version-venv" >/dev/null
fi
"$python" -m venv "$folder" || {
  rm -rf "$folder"
  echo "kafkawire: $python cannot make a virtual environment; on Debian install python3-venv" >&2
  exit 1
}
