"""Tests of kafkawire.objectstore."""
