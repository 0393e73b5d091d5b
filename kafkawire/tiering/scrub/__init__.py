"""Scrubbing: objects compared with metadata, damage found and repaired.

`scrub` compares bucket, rows and manifest, a range of keys at a time. `check` reads again and
closer what seems wrong, `repair` repairs it, `local_copy` replaces a damaged copy of a segment by
the sound one, `background_repair` does so when a read found the damage. Objects without a row are
deleted only when they are old enough and are not the only copy of their records.
"""
