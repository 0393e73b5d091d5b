"""Every command prints what its transcript has.

After an intended change, `python -m tests.cli.recorded` writes the transcripts again.

Covers: kafkawire.cli.*, kafkawire.client.quotas, kafkawire.client.acls.
"""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.cli.recorded.transcript import find_transcripts, read_commands, run_transcript
from tests.kit.cli import no_environment  # noqa: F401  (a fixture, by name)
from tests.kit.commands import all_commands

PIPELINE = ("audit", "compact", "query", "replay", "report", "run")
WITHOUT_JSON = {"tier move", *(f"pipeline {name}" for name in PIPELINE)}
"""Commands whose JSON no transcript has: they take long, or start Spark. tests/tiering/test_move.py
and tests/cli/test_pipeline_json.py run them."""
TRANSCRIPTS = find_transcripts()


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_commands_print_what_is_recorded(name: str, tmp_path: Path) -> None:
    recorded = TRANSCRIPTS[name].read_text(encoding="utf-8").splitlines()
    printed = run_transcript("\n".join(recorded), tmp_path).splitlines()
    diff = "\n".join(unified_diff(recorded, printed, "recorded", "printed", n=6, lineterm=""))
    if diff:
        again = f"if it is intended: python -m tests.cli.recorded {name}"
        pytest.fail(f"{diff}\n{again}", pytrace=False)


def test_every_command_is_recorded_and_its_json() -> None:
    texts = [path.read_text(encoding="utf-8") for path in TRANSCRIPTS.values()]
    typed = [
        each.partition("kafkawire ")[2].split() for text in texts for each in read_commands(text)
    ]
    absent, without = set(), set()
    for path, command in all_commands().items():
        own = [words for words in typed if tuple(words[: len(path)]) == path]
        absent |= set() if own else {" ".join(path)}
        if any("--json" in each.opts for each in command.params):
            without |= set() if any("--json" in words for words in own) else {" ".join(path)}
    assert (absent, without) == ({"pipeline query"}, WITHOUT_JSON)


def test_what_varies_is_replaced(tmp_path: Path) -> None:
    output = "topic  id\n-----  ----------------------\nt      sES-_pRXSn-ifVGOtjQxkQ\n"
    (tmp_path / "table").write_text(output)
    text = "# A comment.\n# <age>: for (\\d+) s\n\n$ cat table; echo for 7 s in $PWD; exit 3\n"
    assert run_transcript(text, tmp_path) == (
        f"{text}  topic  id\n  -----  ----\n  t      <id>\n  for <age> s in <folder>\n[exit 3]\n"
    )
