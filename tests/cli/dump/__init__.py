"""Tests of kafkawire.cli.dump."""
