"""Tests of kafkawire.log.recovery."""
