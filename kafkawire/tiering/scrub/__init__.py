"""Scrubbing: objects compared with metadata, damage found and repaired.

`scrub` compares bucket, rows and manifest, a range of keys at a time. `check` verifies suspect
objects again in detail, `repair` repairs them, `local_copy` replaces a damaged copy of a segment by
the sound one, `background_repair` does the same after a read found the damage. Objects without a
row are deleted only when they are old enough and are not the only copy of their records.
"""
