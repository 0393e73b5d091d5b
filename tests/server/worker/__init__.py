"""Tests of kafkawire.server.worker."""
