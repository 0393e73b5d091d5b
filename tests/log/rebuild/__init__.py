"""Tests of kafkawire.log.rebuild."""
