"""Client metrics (KIP-714): which clients are to push which metrics, and what they pushed last.

An operator creates *subscriptions*: settings of the resource type CLIENT_METRICS. A client asks
with GetTelemetrySubscriptions which metrics are wanted from it, and then sends them with
PushTelemetry, in OpenTelemetry's format. `subscriptions` computes what is wanted from a client,
`instances` decides which requests are refused, `otlp` reads the latencies from a push, and
`service` keeps them for the metrics page.

Easy to get wrong:

- A client asks once. If ApiVersions does not list the two APIs at that time, it never pushes.
- An error decides what a client does next. After INVALID_REQUEST and INVALID_RECORD it never pushes
  again, after UNKNOWN_SUBSCRIPTION_ID it asks again at once.
- What is pushed has a bound before and after decompression, and is parsed in a thread.
"""
