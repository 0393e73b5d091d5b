"""Tests of kafkawire.client."""
