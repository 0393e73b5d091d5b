"""Tests of kafkawire.messages."""
