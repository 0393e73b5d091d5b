"""Rebuild SQL metadata from journals and segments, for `restore --from-log`.

`evidence` reads journals and segments, `local_manifest` adds the facts of the local manifest,
`topics` resolves names and partition numbers, `plan` decides the rows and finds what is lost,
`renumber` rewrites files whose numbers collide, `insert` writes the rows.
"""
