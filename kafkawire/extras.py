"""Packages that only some features need, by the extra of pyproject.toml that installs them."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "postgres": ("asyncpg",),
    "s3": ("boto3",),
    "azure": ("azure.storage.blob",),
    "reading": ("numpy",),
    "certs": ("cryptography",),
    "oauth": ("joserfc",),
    "console": ("httptools", "jinja2", "starlette", "uvicorn", "websockets"),
    "mcp": ("mcp",),
    "rocksdb": ("rocksdict",),
    "keys": ("numba", "numpy"),
    "sql": ("duckdb", "numba", "pyarrow"),
    "spark": ("kafkawire_spark", "pyspark", "deltalake", "pyiceberg", "fastavro", "matplotlib"),
}
"""The packages of each extra that kafkawire or kafkawire-spark imports, by the names of their
modules."""
SPARK = "kafkawire-spark"
"""The distribution that the extra spark installs; it is in the folder spark of the repository."""


class MissingExtra(ModuleNotFoundError):
    """Packages of an extra are not installed; one sentence has the command that installs them."""


def need(extra: str, feature: str, packages: Sequence[str] = ()) -> None:
    """Raise MissingExtra if a package that `feature` needs is not installed: one of `packages`, or
    of all packages of the extra."""
    missing = [name for name in packages or EXTRAS[extra] if not is_installed(name)]
    if missing:
        raise MissingExtra(f"{feature} needs {' and '.join(missing)}: {install_line(extra)}")


def explain(failure: ModuleNotFoundError) -> str | None:
    """Return the sentence for a failed import, if the package belongs to an extra."""
    if isinstance(failure, MissingExtra):
        return str(failure)
    # `import azure.storage.blob` fails with the name of the first package that is missing.
    parts = (failure.name or "").split(".")
    for extra, names in EXTRAS.items():
        for name in names:
            if name.split(".")[: len(parts)] == parts[: name.count(".") + 1]:
                return f"this needs {name}: {install_line(extra)}"
    return None


def is_installed(name: str) -> bool:
    """Return whether the module of an extra's package can be imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def install_line(extra: str) -> str:
    """Return the pip command that adds an extra to kafkawire as it is installed: by name, or from a
    checkout, a repository or a file (PEP 610). kafkawire-spark comes from the same origin."""
    origin, name = _origin(), f"kafkawire[{extra}]"
    url = str(origin.get("url", ""))
    option, targets = "", [name]
    if "dir_info" in origin:
        folder = unquote(urlsplit(url).path)
        option = "--editable " if origin["dir_info"].get("editable") else ""
        targets = [f"{folder}[{extra}]", f"{folder}/spark"]
    elif "vcs_info" in origin:
        source = f"{origin['vcs_info']['vcs']}+{url}"
        targets = [f"{name} @ {source}", f"{SPARK} @ {source}#subdirectory=spark"]
    elif url:
        targets = [f"{name} @ {url}", f"--find-links={url.rpartition('/')[0]}"]
    if extra != "spark":
        del targets[1:]
    return " ".join([f"{_pip()} install", *(option + shlex.quote(each) for each in targets)])


def _origin() -> dict[str, Any]:
    """Return pip's record of where kafkawire was installed from; empty for a package index."""
    from importlib.metadata import PackageNotFoundError, distribution  # 9 ms of each start

    try:
        text = distribution("kafkawire").read_text("direct_url.json")
    except PackageNotFoundError:
        return {}
    return dict(json.loads(text)) if text else {}


def _pip() -> str:
    """Return the pip of this environment: the one on PATH may belong to another."""
    found = shutil.which("pip")
    ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return "pip" if ours else f"{shlex.quote(sys.executable)} -m pip"
