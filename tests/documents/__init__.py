"""The examples and use cases of the dialects' published documents, run end to end as printed."""
