"""Payloads as typed columns, and columns as payloads.

In come messages with a `payloadFormat` and a schema, out come Arrow batches with the columns of the
schema (`typed.py`), and a reason for each payload that does not fit; the sink goes the other way
(`encoding.py`). There is a module for each format: `json_rows`, `csv_rows`, `avro_rows`,
`protobuf_rows`, `arrow_rows`. All of them are decoders as `decoding.py` describes them. Payloads
are other people's bytes: no decoder takes memory that a payload merely announces. Begin with
`typed.py`.
"""
