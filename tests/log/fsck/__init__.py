"""Tests of kafkawire.log.fsck."""
