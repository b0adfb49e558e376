"""The promises of Retinue, one sentence each."""
