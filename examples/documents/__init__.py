"""The handbook of an observatory, made searchable: parse, chunk, embed and index as a chain."""
