"""Rebuild SQL metadata from journals and segments, for `restore --from-log`.

`evidence` is what journals and segments say, `local_manifest` what the local manifest adds,
`topics` resolves names and partition numbers, `plan` decides what follows and what is lost,
`renumber` rewrites files whose numbers collide, `insert` writes the rows.
"""
