"""Record docs/terminal.svg, the picture of README.md: real commands against a broker of their own.

python docs/terminal.py [FILE]
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from kafkawire.testing import BrokerProcess

COMMANDS = (
    "kafkawire topics create orders --partitions 3",
    "printf 'one\\ntwo\\nthree\\n' | kafkawire produce orders",
    "kafkawire consume orders",
)
WIDTH = 96
ID = "q7BSCsl9RmmsXQpvTnyWVg"


def record() -> str:
    """Return the session as SVG, with the same port, folder, id and partition in each run."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder)) as broker:
        served = broker.output.splitlines()[0].replace(folder, "kafkawire-data")
        served = served.replace(broker.bootstrap, "127.0.0.1:9092")
        console.print(Text("$ kafkawire serve &", style="bold green"))
        console.print(Text(served))
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold green"))
            console.print(Text(_output(command, broker.bootstrap)))
    return console.export_svg(title="kafkawire", theme=MONOKAI, unique_id="kafkawire")


def _output(command: str, bootstrap: str) -> str:
    here = command.replace("kafkawire", f"{sys.executable} -m kafkawire")
    done = subprocess.run(
        ["sh", "-c", here],
        capture_output=True,
        text=True,
        check=True,
        env={"KAFKAWIRE_SERVER": bootstrap, "PATH": "/usr/bin:/bin"},
    )
    text = re.sub(r"\b[\w-]{22}(?!\S*-)", ID, done.stdout)
    return re.sub(r"orders:\d", "orders:1", text).rstrip()


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "terminal.svg"
    target.write_text(record(), encoding="utf-8")
