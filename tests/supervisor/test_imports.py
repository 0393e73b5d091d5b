"""The supervisor is small: it imports neither the broker nor SQL.

Covers: kafkawire.supervisor.*.
"""

from __future__ import annotations

import subprocess
import sys


def test_supervisor_imports_no_broker() -> None:
    code = "import sys; import kafkawire.supervisor.run; print(*sorted(sys.modules))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    heavy = ("sqlalchemy", "sqlite3", "kafkawire.log", "kafkawire.metadata", "kafkawire.handlers",
             "kafkawire.broker.broker", "kafkawire.server.run", "kafkawire.server.listener",
             "cramjam", "uvloop")  # fmt: skip
    assert [name for name in heavy if name in loaded] == []
