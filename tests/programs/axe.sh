#!/bin/sh
# axe.sh: downloads axe-core from npm into .venv/axe, once, and prints the path of its script. The
# hash is that of the package. Exits with 1 where there is no npm, or another package arrives.
set -eu
version=4.14.1
hash=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
home=$(cd "$(dirname "$0")/../.." && pwd)/.venv/axe
script=$home/axe.min.js
if [ ! -f "$script" ] || [ "$(cat "$home/version" 2>/dev/null)" != "$version" ]; then
  command -v npm >/dev/null || { echo "no npm" >&2; exit 1; }
  mkdir -p "$home"
  cd "$home"
  npm pack --silent "axe-core@$version" >&2
  echo "$hash  axe-core-$version.tgz" | sha256sum --check --quiet >&2
  tar -xzf "axe-core-$version.tgz" --strip-components=1 package/axe.min.js
  rm "axe-core-$version.tgz"
  echo "$version" > version
fi
echo "$script"
