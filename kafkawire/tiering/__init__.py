"""The remote tier: segments uploaded to object storage, read from there, deleted there.

`service` attaches, starts and stops all of it; `log_listener` receives what happens in the log.
`upload` copies segments, `read` serves cold reads, `retention` removes local files and remote
objects, `manifest` publishes what the bucket has, `scrub` compares bucket, rows and manifest,
`restore` makes a data folder from a bucket, `migrate` moves to another tier, `cost` counts and
estimates, `admin` answers `kafkawire tier`. The broker never imports boto3, which would hold the
interpreter lock: requests go to a storage process.

A start never waits for the bucket: it is attached in the background. Trouble is a warning a
minute and a metric, and an error once when a topic's lag is exceeded. Partitions that are idle
cost no request, and normal operation never lists the bucket.
"""
