"""The public test kit: harness, virtual time, fake servers, and contracts for stores and providers."""
