"""Tests of kafkawire.tiering.cost."""
