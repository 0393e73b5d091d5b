"""Tests of kafkawire.server."""
