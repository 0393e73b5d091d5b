"""Recorded output of every command: a transcript per command or group of commands.

`python -m tests.cli.recorded [NAME...]` runs the transcripts and writes them again.
"""
