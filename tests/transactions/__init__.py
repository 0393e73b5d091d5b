"""Tests of kafkawire.transactions."""
