"""Fuzzing of the parsers of untrusted input: `python -m tests.fuzz TARGET --seconds N`.

A target is a module in `tests/fuzz/targets` with a `TARGET`; its corpus is the folder of the same name in
`tests/fuzz/corpus`. The ordinary tests replay every corpus, so a finding stays a failing test until it is mended.
"""
