"""Tests of kafkawire.tiering."""
