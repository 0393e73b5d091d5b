"""Tests of kafkawire.childprocess."""
