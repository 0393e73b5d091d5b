"""Pure formats: wire types, the message compiler, record batches, compression, errors, configs.

A message is declared once as a typed class (kafkawire.messages); for each message and version
`compile` generates one decoder and one encoder as flat Python source at its first use. Decoding
raises DecodeError for any invalid bytes and nothing else. `produce` and `fetch` are flat codecs
of the hot messages: views, no objects. Tests compare both kinds with each other and with the
library kio. `batches`, `validate` and `walk` are record batches: what a producer's batch must be,
and its records one by one. Decompression stops at a limit. `errors` has every error code with its
sentence, and KafkaError, the one exception with a code.
"""
