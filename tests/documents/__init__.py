"""The examples of the five documents, run end to end as printed."""
