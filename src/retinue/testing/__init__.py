"""The public test kit: what a test needs to hold time, play a model and watch a run."""
