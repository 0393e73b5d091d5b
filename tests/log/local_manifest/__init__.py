"""Tests of kafkawire.log.local_manifest."""
