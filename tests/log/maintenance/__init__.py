"""Tests of kafkawire.log.maintenance."""
