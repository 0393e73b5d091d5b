"""Tests of kafkawire.cli.shared."""
