"""Tests of kafkawire.tiering.store."""
