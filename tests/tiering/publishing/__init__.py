"""Tests of kafkawire.tiering.publishing."""
