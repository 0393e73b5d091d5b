"""Tests of kafkawire.log.manifest."""
