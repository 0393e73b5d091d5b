"""Rebuild what SQL lost from what is left: sources of evidence, one plan, and the rows of it.

`data_folder` gathers `evidence` from journals and segments, `bucket` from a tier's manifest, or the
objects themselves if that is lost or damaged, with `log_objects`. `combine` makes one evidence of
those of several brokers, and of a folder and its bucket. `plan` decides, with `choose_segments`,
and lists what is doubtful or lost; `findings` has damaged objects and wrong rows. `segment_files`
writes what a plan needs, `insert` its rows. Leader epochs rise above all that were lost, so that
clients detect the truncation.

If only the local files are lost, and SQL is not, `lost_files` corrects the rows: finished objects
(`finished_objects`) replace mappings without a file, and the part of an object that a mapping
cannot point to is copied.
"""
