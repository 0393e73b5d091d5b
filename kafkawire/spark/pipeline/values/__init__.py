"""Keys and values as columns: bytes, text, JSON, Avro, Protobuf; whole Arrow arrays at a time.

`spec` is what the job says, `converters` makes a Converter of it, `rows` converts whole batches
and sets the bad records apart, each with its reason. JSON is parsed by Spark itself (`json`).
"""
