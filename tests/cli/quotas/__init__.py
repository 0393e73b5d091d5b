"""Tests of kafkawire.cli.quotas."""
