"""Tests of kafkawire.log.segments."""
