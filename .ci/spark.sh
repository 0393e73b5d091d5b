#!/bin/sh
# spark.sh PYTHON VERSION FOLDER: a virtual environment with another version of PySpark than that of
# PYTHON's environment, from which it has all other packages. About 520 MB.
set -eu
python=$1 version=$2 folder=$3
rm -rf "$folder"
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet "pyspark==$version.*"
# Its own packages come first on sys.path, because those of PYTHON are added after them.
"$python" - "$folder" <<'END'
import pathlib, site, sys, sysconfig

folder = sys.argv[1]
packages = sysconfig.get_path("purelib", vars={"base": folder, "platbase": folder})
shared = site.getsitepackages()[0]
line = f"import site; site.addsitedir({shared!r})\n"
pathlib.Path(packages, "kafkawire-shared.pth").write_text(line, encoding="utf-8")
END
