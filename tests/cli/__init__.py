"""Tests of kafkawire.cli."""
