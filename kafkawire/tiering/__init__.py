"""The remote tier: segments uploaded to object storage, read from there, deleted there.

`service` attaches, starts and stops all of it; `log_listener` receives what happens in the log.
`upload` copies segments, `read` serves cold reads, `retention` removes local files and remote
objects, `manifest` publishes what the bucket has, `packs` copies the key filters of many objects
into one, `scrub` compares bucket, rows and manifest, `migrate` moves to another tier, `cost` counts
and estimates, `admin` answers `kafkawire tier`. The broker never imports boto3, because it would
hold the interpreter lock: a storage process makes the requests.

The broker's start never waits for the bucket, which is attached in the background. A failure is
counted in a metric and logged as a warning at most once a minute; a topic that exceeds its lag
limit is logged as an error once. Idle partitions cause no requests, and normal operation never
lists the bucket.
"""
