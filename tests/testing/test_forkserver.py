"""The process that forks brokers has imported what they need."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kafkawire.forkserver import modules_to_import

USE = """
import asyncio, json, sys
from importlib import import_module
from kafkawire.forkserver import modules_to_import

for name in modules_to_import():
    import_module(name)
before = set(sys.modules)

from kafkawire.testing.in_process import async_broker  # it imports no more of a broker
from tests.testing.test_in_process import use

client = set(sys.modules)


async def main():
    async with async_broker(sys.argv[1]) as broker:
        await asyncio.to_thread(use, broker.bootstrap)


asyncio.run(main())
names = {name for name in set(sys.modules) - client if name.startswith("kafkawire")}
print(json.dumps(sorted(names)))
"""


def test_modules_exist() -> None:
    """An optional one would be skipped without notice."""
    for name in modules_to_import():
        importlib.import_module(name)


@pytest.mark.real
@pytest.mark.slow
def test_broker_that_is_used_imports_nothing_more(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", USE, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []
