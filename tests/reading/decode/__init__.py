"""Tests of kafkawire.reading.decode."""
