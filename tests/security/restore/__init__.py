"""Tests of kafkawire.security.restore."""
