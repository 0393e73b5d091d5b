#!/bin/sh
# azurite.sh: installs Azurite, Microsoft's emulator of Azure Blob Storage, into .venv/azurite with
# npm, once, and prints the path of its program. Exits with 1 where there is no npm.
set -eu
version=3.37.0
home=$(cd "$(dirname "$0")/../.." && pwd)/.venv/azurite
program=$home/node_modules/.bin/azurite-blob
if [ ! -x "$program" ] || [ "$(cat "$home/version" 2>/dev/null)" != "$version" ]; then
  command -v npm >/dev/null || { echo "no npm" >&2; exit 1; }
  mkdir -p "$home"
  npm install --no-audit --no-fund --silent --prefix "$home" "azurite@$version" >&2
  echo "$version" > "$home/version"
fi
echo "$program"
