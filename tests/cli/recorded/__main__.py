"""Write the transcripts again: `python -m tests.cli.recorded [NAME...]`, by default all."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.cli.recorded.transcript import find_transcripts, run_transcript


def main() -> None:
    for name in list(os.environ):
        if name.startswith("KAFKAWIRE_"):
            del os.environ[name]
    transcripts = find_transcripts()
    for name in sys.argv[1:] or transcripts:
        text = transcripts[name].read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            written = run_transcript(text, Path(folder).resolve())
        transcripts[name].write_text(written, encoding="utf-8")
        print(f"{name}: {'unchanged' if written == text else 'changed'}")


if __name__ == "__main__":
    main()
