"""Tests of kafkawire.reading.files."""
