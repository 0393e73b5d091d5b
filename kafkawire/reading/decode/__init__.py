"""Record batches to Arrow batches at native speed. `port.RangeDecoder` is the interface;
`decoder.Decoder` is compiled, `first_rows.FirstRowsDecoder` decodes until that is worth loading."""
