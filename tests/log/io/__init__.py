"""Tests of kafkawire.log.io."""
