"""Tests that a change of the source changes nothing observable.

`recorded/0.1` has recordings of version 0.1, with placeholders for ids, times, durations, processes, ports and paths.
The tests in `test_compatibility.py`

- play every scenario of `scenarios/` again, in real processes and against scripted model servers, and compare output,
  log lines, requests to models, files and the store with the recording, byte for byte;
- run read-only commands on state folders of version 0.1, and compare their output byte for byte;
- continue runs, conversations and memories of state folders of version 0.1 (`recorded_homes.py`).

Texts for people are in `prose.txt` and `help.txt`, everything else is in `contract.txt`. `record.py` documents how a
part is recorded again after a change that means to reword it.
"""
