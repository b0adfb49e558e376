"""Check commit messages: `component: imperative` in at most 72 characters, then a blank line and the reason.

As the commit-msg hook it gets the file with the message; `make titles` gives it a range of commits. The tests check
the rule and not the history: a published commit cannot get another title.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

MAX_CHARACTERS = 72
COMPONENT = r"[a-z0-9_.][a-z0-9_./-]*"
TITLE = re.compile(rf"{COMPONENT}(, {COMPONENT})*: (?P<rest>\S.*)")
WRITTEN_BY_GIT = ("Merge ", "Revert ", "Reapply ", "fixup! ", "squash! ", "amend! ")
SCISSORS = "# ------------------------ >8 ------------------------"


def problems(message: str) -> list[str]:
    """The violations of a commit message; none for titles that git itself writes.

    >>> problems("store: close every connection\\n\\nPython 3.13 warns of the others.")
    []
    >>> problems("Fixed the store.")
    ["the title has no component: write 'store: close every connection'"]
    >>> problems("store: close every connection\\nPython 3.13 warns of the others.")
    ['the second line is not blank']
    """
    title, *rest = _without_comments(message) or [""]
    if title.startswith(WRITTEN_BY_GIT):
        return []
    violations: list[str] = []
    if not (match := TITLE.fullmatch(title)):
        violations.append("the title has no component: write 'store: close every connection'")
    elif match["rest"].endswith("."):
        violations.append("the title ends with a full stop")
    if len(title) > MAX_CHARACTERS:
        violations.append(f"the title has {len(title)} characters, at most {MAX_CHARACTERS} are allowed")
    if rest and rest[0].strip():
        violations.append("the second line is not blank")
    return violations


def _without_comments(message: str) -> list[str]:
    """The lines that git stores: without comments, the diff of `git commit -v` and leading blank lines."""
    text = message.split(SCISSORS)[0]
    return "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip().splitlines()


def messages(commits: str) -> list[str]:
    """The messages of a range of commits, as `main..HEAD`, without merges."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "-z", "--format=%B", commits], check=True, capture_output=True, text=True
    )
    return [message for message in log.stdout.split("\0") if message.strip()]


def main(arguments: list[str]) -> int:
    """Check one message in a file, or with `--range` those of commits; print violations to stderr."""
    match arguments:
        case ["--range", commits]:
            checked = messages(commits)
        case [file]:
            checked = [Path(file).read_text(encoding="utf-8")]
        case _:
            print("usage: commit_title.py FILE | --range COMMITS", file=sys.stderr)
            return 2
    failed = [(message.strip().partition("\n")[0], found) for message in checked if (found := problems(message))]
    for title, violations in failed:
        print(f"{title}\n  " + "\n  ".join(violations), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
