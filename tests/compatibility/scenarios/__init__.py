"""The scenarios, one module per area."""
