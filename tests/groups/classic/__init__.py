"""Tests of kafkawire.groups.classic."""
