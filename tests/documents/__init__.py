"""The examples and use cases of the dialects' documents, run end to end."""
