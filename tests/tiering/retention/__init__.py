"""Tests of kafkawire.tiering.retention."""
