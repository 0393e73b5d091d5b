"""Object storage by blocking calls: S3 and folders with one port, for the tier and for Spark.

`port` defines the interface, divided into small roles; `s3` and `folder` are the providers, which
`open` creates from a URL (`url`); `errors` are the failures. Imports nothing else of the project.
"""
