"""From a bucket alone to a data folder: evidence, a plan, and the rows of it.

`evidence` reads the manifest, or the objects themselves if it is lost or damaged; `tiling`
chooses the objects from which a partition is read, `plan` says what is restored and what is
doubtful, `damage` which of it is damaged, `insert` writes the rows. Leader epochs rise above any
that were lost, so that clients notice.
"""
