"""Tests of kafkawire.cli.acls."""
