"""Tests of kafkawire.log.journal."""
