"""Tests of kafkawire.tiering.scrub."""
