"""Tests of kafkawire.coordination."""
