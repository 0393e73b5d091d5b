"""Rebuild what SQL lost from what is left: sources of evidence, one plan, and the rows of it.

`data_folder` gathers `evidence` from journals and segments, with `local_manifest`; `bucket` from a
tier's manifest, or the objects themselves if that is lost or damaged, with `log_objects`. `folders`
and `several_brokers` make one evidence of those of several brokers, `merge_evidence` adds a bucket
to a folder. `folder_plan` (with `topics`) and `bucket_plan` (with `tiling`) decide the `plan` and
list what is doubtful or lost; `damage` finds damaged ranges. `renumber` and `carry` write the
segment files that a plan needs, `insert` its rows. Leader epochs rise above all that were lost, so
that clients detect the truncation.

If only the local files are lost, and SQL is not, `lost_files` corrects the rows: finished
objects (`finished_objects`) replace mappings without a file, as `lost_files_plan` chooses;
`copied_part` copies the part of an object that a mapping cannot point to. `only_in_folder` finds
the partitions that an empty folder would lose.
"""
