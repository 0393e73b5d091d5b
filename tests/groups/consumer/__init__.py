"""Tests of kafkawire.groups.consumer."""
