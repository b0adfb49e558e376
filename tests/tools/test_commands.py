"""What a shell command would start, as far as its text tells."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.policy import Policy, Risk
from retinue.tools.commands import Unreadable, refusal_of, risk_of, steps_of


def names(command: str) -> list[str] | str:
    steps = steps_of(command)
    return "unreadable" if isinstance(steps, Unreadable) else [step.name for step in steps]


@pytest.mark.parametrize(
    ("command", "programs"),
    [
        ("ls", ["ls"]),
        ("cd src && LANG=C grep -r pool . | head -3", ["cd", "grep", "head"]),
        ("a\nb; c&", ["a", "b", "c"]),
        ("echo a;rm b", ["echo", "rm"]),
        ("/bin/ls -l", ["ls"]),
        ("echo '$(id)'", ["echo"]),
        ("if true; then rm x; fi", ["true", "rm"]),
        ("for i in 1 2; do echo $i; done", ["echo"]),
        ("x() { rm -rf /; }; x", ["x", "rm", "x"]),
        ("r\\m x", ["rm"]),
        ("'r'm x", ["rm"]),
        ("ls 2>&1 | head", ["ls", "head"]),
        ("", []),
        ("   ", []),
        ("echo $(id)", "unreadable"),
        ('echo "$(id)"', "unreadable"),
        ("echo `id`", "unreadable"),
        ("diff <(a) <(b)", "unreadable"),
        ("$SHELL -c id", "unreadable"),
        ("{rm,-rf,x}", "unreadable"),
        ("~/evil", "unreadable"),
        ("PATH=. ls", "unreadable"),
        ("LD_PRELOAD=./x.so ls", "unreadable"),
        ("cat <<EOF\nhi\nEOF", "unreadable"),
        ("echo '", "unreadable"),
    ],
)
def test_every_program_of_a_command_is_seen_or_the_command_is_called_unreadable(
    command: str, programs: list[str] | str
) -> None:
    assert names(command) == programs


@pytest.mark.parametrize(
    ("command", "risk"),
    [
        ("git status", Risk.LOW),
        ("git -c alias.x='!sh' x", Risk.HIGH),
        ("git push --force", Risk.MEDIUM),
        ("python3 --version", Risk.LOW),
        ("python3 -c 'print(1)'", Risk.MEDIUM),
        ("echo hi > note.txt", Risk.MEDIUM),
        ("ls 2>/dev/null", Risk.LOW),
        ("find . -name '*.py'", Risk.LOW),
        ("find . -delete", Risk.HIGH),
        ("find . -exec cat {} +", Risk.HIGH),
        ("sed -i s/a/b/ x", Risk.MEDIUM),
        ("ls && sudo ls", Risk.HIGH),
        ("mkfs.ext4 /dev/sda", Risk.HIGH),
        ("echo $(id)", Risk.HIGH),
    ],
)
def test_the_worst_part_of_a_command_is_its_risk(command: str, risk: Risk) -> None:
    assert risk_of(command) is risk


def test_a_command_that_is_not_on_the_list_is_refused_with_the_list() -> None:
    policy = Policy(allowed_commands=("ls", "git"))

    assert refusal_of("ls -l | git log", policy) is None
    assert refusal_of("ls; curl x", policy) == (
        "Security policy: command 'curl' is not allowed (allowed_commands); use one of: ls, git"
    )
    assert refusal_of("./ls", policy) == (
        "Security policy: './ls' names a program by its path; allowed are the commands of allowed_commands by their "
        "names: ls, git"
    )
    assert refusal_of("ls `id`", policy) == (
        "Security policy: substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself"
    )


@given(st.text(max_size=60))
def test_no_text_makes_the_reading_fail(command: str) -> None:
    steps_of(command)
    assert risk_of(command) in tuple(Risk)


@given(st.lists(st.text(max_size=8), max_size=4), st.sampled_from(["&&", "||", ";", "|", "\n"]))
def test_quoted_arguments_never_hide_a_command_that_follows(arguments: list[str], between: str) -> None:
    quoted = " ".join(map(shlex.quote, arguments))
    found = names(f"echo {quoted} {between} rm x")
    assert found == "unreadable" or "rm" in found
