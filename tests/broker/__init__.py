"""Tests of kafkawire.broker."""
