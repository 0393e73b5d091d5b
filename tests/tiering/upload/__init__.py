"""Tests of kafkawire.tiering.upload."""
