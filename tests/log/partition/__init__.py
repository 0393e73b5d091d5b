"""Tests of kafkawire.log.partition."""
