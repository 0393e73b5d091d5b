"""Tests of kafkawire.security."""
