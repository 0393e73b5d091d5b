"""Tests of kafkawire.codec."""
