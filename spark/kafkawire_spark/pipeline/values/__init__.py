"""Keys and values as columns: bytes, text, JSON, Avro, Protobuf; whole Arrow arrays at a time.

`spec` is the format in the job, `converters` creates a Converter from it, `rows` converts whole
batches and separates bad records, each with its reason. Spark itself parses JSON (`json`).
"""
