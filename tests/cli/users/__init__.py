"""Tests of kafkawire.cli.users."""
