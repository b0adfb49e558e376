"""The examples and use cases of the five documents, one file per document."""
