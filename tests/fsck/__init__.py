"""Tests of kafkawire.fsck."""
