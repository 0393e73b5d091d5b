"""From a bucket alone to a data folder: evidence, a plan, and the rows of it.

`evidence` reads the manifest, or the objects themselves if it is lost or damaged. `tiling` chooses
the objects from which a partition is read, `plan` decides what is restored and lists doubts,
`damage` finds damaged ranges, `insert` writes the rows. Leader epochs rise above all that were
lost, so that clients detect the truncation.

If only the local files are lost, and SQL is not, `lost_files` corrects the rows: finished
objects (`finished_objects`) replace mappings without a file, as `lost_files_plan` chooses;
`copied_part` copies the part of an object that a mapping cannot point to. `only_in_folder` finds
the partitions that an empty folder would lose.
"""
