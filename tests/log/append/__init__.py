"""Tests of kafkawire.log.append."""
