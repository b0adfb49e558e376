"""Shell commands that look harmless: what is of low risk reads only, and every started program is checked."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from retinue.core.messages import ToolMessage
from retinue.core.policy import Policy, Risk
from retinue.core.ports import Request
from retinue.providers.scripted import ScriptedReply, calls, says, together
from retinue.testing.harness import Harness
from retinue.tools.shell import lexer, shell_tool, starters
from retinue.tools.shell.lexer import MAX_COMMAND_BYTES
from retinue.tools.shell.parser import ParsedCommand, parse, refusal_of
from retinue.tools.shell.risk import risk_of

NEEDS_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
NEEDS_APPROVAL = "Security policy: 'shell': this medium-risk call needs approval"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


async def results(*lines: ScriptedReply, **options: Any) -> list[str]:
    """The results that a model reads after making all these calls at once; no person answers."""
    texts: list[str] = []

    def collect_results(request: Request) -> ScriptedReply:
        texts.extend(message.text for message in request.messages if isinstance(message, ToolMessage))
        return says("done")

    async with Harness(dialects=(), tools=["shell"], approvals="deny", **options) as r:
        r.script("main", together(*lines), collect_results)
        await r.run("go")
    return texts


# ---- risk ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "git --shallow-file log status",
        "git --shallow-file log -c alias.x='!sh' x",
        "git --no-such-option status",
        "git --exec-path=. status",
        "git --bare log",
        "git --git-dir=x log",
        "git --work-tree x status",
        "git -p log",
        "git log --output=x",
        "git log --outp x",
        "git diff --no-index --output=x a b",
        "git grep -O pool",
        "git grep -nO pool",
        "git grep -LO pool",
        "git log --show-signature",
        "git log --format=%G?",
        "git log --pretty=format:%GK",
        "git for-each-ref --format='%(signature)'",
        "git for-each-ref --sort=signature",
        "git cat-file --filters HEAD:a",
        "git cat-file --textconv HEAD:a",
        "git rev-list --alternate-refs",
        "git diff --submodule=diff",
        "git log -p --submod=log",
        "git grep --recurse-submodules x",
        "git log --remerge-diff",
        "git describe --dirty",
        "git diff --ext-diff",
        "git log --textconv",
        "npm view x",
        "npm info x",
        "npm show x",
        "npm outdated",
        "npm ls --logs-dir=x",
        "npm ls --script-shell ./x",
        "npm --prefix x ls",
        "cargo metadata",
        "cargo tree",
        "cargo --version",
        "cargo version",
        "pip freeze",
        "pip list --log x",
        "pip list --lo x",
        "pip --python ./x list",
        "file --co -m x",
        "file --compile -m x",
        "file -bC -m x",
        "file -z x.xz",
        "rg -z x",
        "rg -iz x",
        "rg --search-zip x",
        "sort --ou=x a",
        "sort -nro x a",
        "sort a -k1 -o x",
        "diff -l a b",
        "diff --pag a b",
        "date --se=tomorrow",
        "date -us tomorrow",
        "date 0101",
        "hostname x",
        "arch -x86_64 ls",
        "deploy --help",
        "deploy --version",
        "yarn --version",
        "mvn --version",
        "cat < $x",
        "x=/dev/tcp/a/1; cat < $x",
    ],
)
def test_what_writes_or_starts_something_is_never_of_low_risk(command: str) -> None:
    assert risk_of(parse(command)) is not Risk.LOW


@pytest.mark.parametrize(
    "command",
    [
        "git status --short --branch",
        "git diff HEAD~1 --stat -- src",
        "git --no-pager log --oneline -5",
        "git -C src log -p --follow a.py",
        "git log -GTODO --format='%h %s'",
        "git log -L1,5:a.py",
        "git show HEAD:a.py",
        "git -c color.ui=false -c core.pager=cat diff",
        "git grep -n TODO",
        "git blame -L1,5 a.py",
        "git rev-parse --show-toplevel",
        "npm ls --depth=0 --json",
        "npm root -g",
        "npm --version",
        "pip list --format=json",
        "pip show -f requests",
        "python3 --version",
        "node -v",
        "git --version",
        "file -b x",
        "rg -n -i TODO src",
        "sort -k2,2n -t: a | uniq -c | sort -rn | head",
        "diff -u a b",
        "date -u +%FT%TZ",
        "date -Iseconds",
        "hostname -f",
        "arch",
        "ls -la && wc -l *.py",
        "printf '%-5s %03d\\n' a 7",
        'for f in a b; do [ -f "$f" ] && cat < a; done',
        "cd src && git status",
        "sleep 1 & wait $!",
        "test 3 -gt 2 && exit 0",
        'n=3; [ "$n" -gt 2 ] && echo big; exit $n',
    ],
)
def test_common_reading_commands_stay_of_low_risk(command: str) -> None:
    parsed = parse(command)

    assert (parsed.unreadable, risk_of(parsed)) == ("", Risk.LOW)


async def test_an_unknown_option_does_not_hide_what_git_starts(workspace: Path) -> None:
    hidden = "git --shallow-file log -c alias.x='!touch pwned' x"
    texts = await results(calls("shell", command=hidden), tool_options=None)
    free = Policy(require_approval_for_medium_risk=False, block_high_risk_commands=False)
    texts += await results(calls("shell", command=hidden), policy=free)

    assert texts == [
        "Security policy: 'shell': high-risk calls are blocked (block_high_risk_commands); find a safer way",
        "Security policy: it is not known what 'git' would start here; write its arguments out, without options before "
        "its subcommand other than -C, --no-pager and settings that name no program",
    ]
    assert os.listdir(workspace) == []


# ---- the list --------------------------------------------------------------------------------------------------------

STARTERS = (
    *("flock x rm y", "flock -n x rm y", "flock 9", "taskset -c 0 rm y", "taskset 3 rm y", "chrt -f 10 rm y"),
    *("setarch x86_64 rm y", "setarch x86_64 -R rm y", "setarch -R rm y", "linux64 rm y", "linux64", "i386 -R rm y"),
    *("prlimit --nofile=9 rm y", "watch rm y", "watch -n1 rm y", "script -c 'rm y'", "script", "run-parts x"),
    *("/usr/bin/time rm y", "'time' -f %e rm y", "capsh -- -c 'rm y'", "/lib64/ld-linux-x86-64.so.2 /bin/rm y"),
    *("split --filter='rm y' x", "split --fil 'rm y' x", "tar -cf x --checkpoint-action=exec='rm y' ."),
    *("tar xf a --to-command=rm", "tar -I rm -xf a", "tar xIf rm a", "tar -xIrm -f a", "tar --use-comp=rm -xf a"),
    *("rg --pre rm x .", "sort --compress-program=rm x", "stdbuf -oL rm y", "ionice -c3 rm y", "unshare -r rm y"),
    *("unshare", "setsid -w rm y", "setpriv --nnp rm y", "runuser -u x rm y", "su -c 'rm y'", "su", "sudo -u x rm y"),
    *("sudo -s", "doas rm y", "parallel rm ::: y", "parallel", "entr rm y", "entr -s 'rm y'", "busybox rm y"),
    *("toybox rm y", "strace -f rm y", "strace -o '|rm y' ls", "ltrace rm y", "valgrind -q rm y", "chroot x"),
    *("valgrind --tool=../x ls", "systemd-run --scope rm y", "systemd-run --property=ExecStartPre=rm ls"),
    *("dbus-run-session -- rm y", "faketime now rm y", "nice env timeout 5 rm y", "command rm y", "exec rm y"),
    *("env -S 'rm y' ls", "git -c core.fsmonitor=./x status", "git --config-env=a=b status", "arch -x86_64 rm y"),
    *("flock --command='rm y' x", "flock x -c 'rm y'", "chrt -i rm y", "env env env env env env ls"),
)


@pytest.mark.parametrize("command", STARTERS)
def test_a_starter_on_the_list_does_not_bring_what_it_starts(command: str) -> None:
    first = parse(command).steps[0].program
    policy = Policy(allowed_commands=(first, "ls", "env", "timeout", "nice"))
    refusal = str(refusal_of(parse(command), policy))

    if command == "flock 9":
        assert refusal == "None"
    else:
        assert "would start" in refusal


@pytest.mark.parametrize(
    "command",
    [
        *("flock x ls", "taskset -c 0-1 ls -l", "setarch x86_64 -R ls", "nice -n 5 ionice -c 3 timeout 5 ls"),
        *("stdbuf -oL ls", "prlimit --nofile=9 ls", "sudo -n ls", "busybox ls", "tar -czf x.tgz .", "tar xf x.tgz"),
        *("tar --exclude=x -cvf a.tar b", "split -l 5 x", "strace -f -e trace=open ls", "env A=b ls", "timeout 5 ls"),
        *("find . -exec ls {} + -exec ls {} ';'", "git -C x --no-pager log", "git -c user.name=x commit -m y"),
    ],
)
def test_a_starter_and_what_it_starts_may_both_be_on_the_list(command: str) -> None:
    names = ("flock", "taskset", "setarch", "nice", "ionice", "timeout", "stdbuf", "prlimit", "sudo", "busybox", "tar")
    policy = Policy(allowed_commands=(*names, "split", "strace", "env", "find", "git", "ls"))

    assert refusal_of(parse(command), policy) is None


# ---- bounded work ----------------------------------------------------------------------------------------------------

WORST: dict[str, Callable[[int], str]] = {
    "starters": lambda n: "env " * (n // 4),
    "starters with words": lambda n: "xargs -n 1 " * (n // 11) + "ls",
    "find": lambda n: "find -exec " * (n // 11),
    "find ended": lambda n: "find . " + "-exec find {} ';' " * (n // 18),
    "find in find": lambda n: "find . -exec " * (n // 26) + "';' " * (n // 8),
    "patterns": lambda n: "find " + "*a " * (n // 3),
    "long pattern": lambda n: "find " + "*a" * (n // 2),
    "keywords": lambda n: "! " * (n // 2),
    "assignments": lambda n: "x=1 " * (n // 4),
    "quotes": lambda n: "''" * (n // 2),
    "escapes": lambda n: '"' + '\\"' * (n // 2 - 2) + '"',
    "here-document": lambda n: "cat <<'A'\n" + "\n" * (n - 20) + "A\n",
    "here-documents": lambda n: "cat " + "<<'A'" * (n // 7) + "\n" + "A\n" * (n // 7),
    "brackets": lambda n: "( " * (n // 2),
    "substitutions": lambda n: "$(" * (n // 2),
    "backquotes": lambda n: "`" * n,
    "braces": lambda n: "{" * n,
    "if": lambda n: "if a; then " * (n // 11),
    "case": lambda n: "case a in a) " * (n // 13),
    "arithmetic": lambda n: "((" * (n // 2),
    "format": lambda n: "printf '%" + "0" * (n - 12) + "'",
    "shell text": lambda n: "sh -c " + "'a;b' " * (n // 6 - 2),
    "split string": lambda n: "env -S '" + "env " * (n // 4 - 3) + "'",
    "settings of git": lambda n: "git " + "-c user.name=a " * (n // 15) + "log",
    "tests": lambda n: "[ " + "1 -eq 1 -a " * (n // 11) + "]",
    "a variable": lambda n: "A" * (n - 2) + "=1",
}


@pytest.mark.parametrize("kind", WORST)
def test_the_work_of_reading_a_command_grows_no_faster_than_its_length(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the pieces that are read and the starters that are looked into; both are bounded by the length."""
    count = [0]

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            return function(*args, **kwargs)

        return counted

    monkeypatch.setattr(lexer._Lexer, "_count", counting(lexer._Lexer._count))  # pyright: ignore[reportPrivateUsage]
    for name in ("started_by", "_followed", "_matches_one_of", "is_option"):
        monkeypatch.setattr(starters, name, counting(getattr(starters, name)))
    for length in (200, 4000, MAX_COMMAND_BYTES):
        count[0] = 0
        parsed = parse(WORST[kind](length))
        risk_of(parsed)
        refusal_of(parsed, Policy())
        assert count[0] <= 6 * length + 100


def test_a_longer_command_than_a_shell_takes_is_refused_before_it_is_read() -> None:
    assert parse("#" + "x" * (MAX_COMMAND_BYTES - 1)).unreadable == ""
    for command in ("ls " + "x" * MAX_COMMAND_BYTES, "ls " + "\u00e9" * (MAX_COMMAND_BYTES // 2)):
        assert parse(command).unreadable == (
            "the command has more than 131071 bytes; write long texts to a file with a file tool"
        )
    assert parse("a;" * 10_001).unreadable == (
        "the command has more than 20000 words and signs; split it, or write it to a file"
    )


@pytest.mark.real_time
async def test_long_commands_are_read_in_a_thread_and_all_are_answered(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound in seconds is generous: one of these commands, read with exponential work, takes years."""
    commands = [make(MAX_COMMAND_BYTES) for make in WORST.values()] + ["env " * 40, "find -exec " * 20]
    on_the_loop: list[int] = []
    parse_command = shell_tool.parse

    def parsing(command: str) -> ParsedCommand:
        if threading.current_thread() is threading.main_thread():
            on_the_loop.append(len(command))
        return parse_command(command)

    monkeypatch.setattr(shell_tool, "parse", parsing)
    async with asyncio.timeout(300):
        texts = await results(*(calls("shell", command=command) for command in commands))

    assert on_the_loop == [160, 220]
    assert len(texts) == len(commands)


@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_a_long_command_runs_as_a_short_one_does(workspace: Path) -> None:
    body = "line of a file\n" * 5000
    free = Policy(require_approval_for_medium_risk=False)
    texts = await results(
        calls("shell", command=f"cat > made.txt <<'EOF'\n{body}EOF\nwc -l made.txt"),
        calls("shell", command=f"echo {'x' * 5000} | wc -c"),
        calls("shell", command=f"curl {'x' * 5000}"),
        policy=free,
    )

    assert texts[:2] == ["5000 made.txt", "5001"]
    assert texts[2].startswith("Security policy: 'shell': high-risk calls are blocked")
    assert (workspace / "made.txt").read_text() == body


# ---- shells ----------------------------------------------------------------------------------------------------------

SHELLS = [
    (name, options)
    for name, options in (("dash", ()), ("bash", ()), ("bash", ("--posix",)))
    if shutil.which(name) is not None
]
RUNS = "$(>made)"
"""Makes a file if it is evaluated."""
LINES = (
    *("case x in esac > made", "case x in esac >| made", "case x in y) ls ;; esac 2> made"),
    *(
        f"ls='a[{RUNS}]'; ((ls))",
        f"ls='a[{RUNS}]'; (\\\n(ls))",
        f"x='a[{RUNS}]'; for ((ls=x; ls<1; ls++)); do ls; done",
    ),
    *(
        f"wait -p 'a[{RUNS}]'",
        f"ls & wait -n -p 'a[{RUNS}]'",
        f"x='-p a[{RUNS}]'; ls & wait -n $x",
        f"wait 'a[{RUNS}]'",
    ),
    *(f"[[ 'a[{RUNS}]' -eq 1 ]]", f"test -v 'a[{RUNS}]'", f"[ -v 'a[{RUNS}]' ]", f"printf -v 'a[{RUNS}]' x"),
    *(f"x='a[{RUNS}]'; read \"$x\" < /dev/null", f"read 'a[{RUNS}]' < /dev/null", f"declare 'a[{RUNS}]=1'"),
    *(f"let 'a[{RUNS}]'", f"unset 'a[{RUNS}]'", f"typeset -i x; x='a[{RUNS}]'", f"export 'a[{RUNS}]=1'"),
    *(f"x='{RUNS}'; echo ${{x@P}}", "cat <(>made)", "ls > >(>made)", "coproc >made", "ls |& >made", "ls &>made"),
    *("function ls { >made; }; ls", "$'\\x3e'made", "eval '>made'", "alias ls='>made'\nls", "trap '>made' EXIT"),
    *(f"b='a[{RUNS}]'; echo {{a[b]}}>/dev/null", f"x='a[{RUNS}]'; echo $((x))", f"x='a[{RUNS}]'; echo $[x]"),
    *(f"x='a[{RUNS}]'; test \"$x\" -eq 1", f"x='a[{RUNS}]'; [ 1 -lt \"$x\" ]", f"x='a[{RUNS}]'; exit \"$x\""),
    *(f"x='a[{RUNS}]'; printf %d \"$x\"", f"x='a[{RUNS}]'; printf '%*s' \"$x\" a", f"printf %d 'a[{RUNS}]'"),
    *(
        f"x='a[{RUNS}]'; for i in 1; do break \"$x\"; done",
        f"x='a[{RUNS}]'; ls $((x))",
        f"x='a[{RUNS}]'; test -t \"$x\"",
    ),
    *("printf '3%n' PATH; ls", "echo {PATH}>/dev/null; ls", "PS4='$(>made)'; set -x; ls", f"a=1; exit 'a[{RUNS}]'"),
    *("x=. ; cd 3; PATH=$x; ls", "hash -p ./3/ls ls; ls", "12>/dev/null ls", "ENV=./3/ls; export ENV; ls"),
    *("BASH_ENV=./3/ls ls", "export BASH_ENV=./3/ls; ls", "read -a ls < /dev/null", "mapfile -C '>made' -c 1 a < 3/ls"),
    *("select ls in a; do >made; done", "time -p >made", "! >made", "if >made; then ls; fi", "ls >made", ">made ls"),
    *(
        "{ ls; } >made",
        "ls <>made",
        "ls >|made",
        "ls >&made",
        "ls 1>&2 >made",
        "(ls) >made",
        "for i in 1; do ls; done >made",
    ),
)


@pytest.mark.skipif(not SHELLS, reason="neither dash nor bash is installed")
@pytest.mark.parametrize("command", LINES)
def test_no_shell_runs_code_or_writes_a_file_in_a_command_of_low_risk(command: str, tmp_path: Path) -> None:
    """A line of low risk, whose programs are all on the list, makes no file in dash and none in bash."""
    parsed = parse(command)
    if (
        refusal_of(parsed, Policy(allowed_commands=("ls", "cat", "echo"))) is not None
        or risk_of(parsed) is not Risk.LOW
    ):
        return
    for name, options in SHELLS:
        assert made_by([name, *options, "-c", command], tmp_path) == [], name


@pytest.mark.skipif(not SHELLS, reason="neither dash nor bash is installed")
def test_the_attempts_do_something_in_some_shell(tmp_path: Path) -> None:
    worked = {
        command
        for command in LINES
        if any(made_by([name, *options, "-c", command], tmp_path) for name, options in SHELLS)
    }

    assert len(worked) > (40 if any(name == "bash" for name, _ in SHELLS) else 5)


def made_by(argv: Sequence[str], folder: Path) -> list[str]:
    """What a command leaves in an empty folder, where `ls` by its path makes a file; there are no other programs."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    for name in ("3", "10"):
        (work / name).mkdir(parents=True)
        (work / name / "ls").write_text("#!/bin/sh\n>made\n")
        (work / name / "ls").chmod(0o755)
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("ls", "cat", "echo"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    shell = shutil.which(argv[0])
    assert shell is not None
    subprocess.run(
        ["sh", *argv[1:]],
        executable=shell,
        cwd=work,
        env={"PATH": str(programs)},
        stdin=DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return sorted(each.name for each in work.rglob("*") if each.name not in ("3", "10", "ls"))


# ---- repositories ----------------------------------------------------------------------------------------------------


def git(*arguments: str, folder: Path) -> None:
    names = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **names}
    subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, check=True)


@pytest.fixture
def repository(workspace: Path) -> Path:
    """A repository with a changed file, as a person has it."""
    git("init", "-q", "-b", "main", folder=workspace)
    (workspace / "a.txt").write_text("one\n")
    git("add", ".", folder=workspace)
    git("commit", "-qm", "first", folder=workspace)
    (workspace / "a.txt").write_text("two\n")
    for name, value in (
        ("user.name", "Ada"),
        ("user.email", "ada@example.org"),
        ("remote.origin.url", "https://example.org/x.git"),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
        ("branch.main.merge", "refs/heads/main"),
        ("alias.st", "!echo status"),
        ("core.hooksPath", ".husky"),
        ("core.sshCommand", "ssh -i key"),
        ("merge.conflictStyle", "zdiff3"),
    ):
        git("config", name, value, folder=workspace)
    return workspace


READS = ("git status", "git diff", "git log -p", "git show", "git blame a.txt", "git ls-files", "git grep two")


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_reading_commands_of_an_ordinary_repository_need_no_approval(repository: Path) -> None:
    (repository / "src").mkdir()
    commands = (*READS, "cd src && git status --short", "git -C src diff --stat", "git --no-pager log --oneline")
    texts = await results(*(calls("shell", command=command) for command in commands))

    assert [text for text in texts if text.startswith("Security policy")] == []
    assert texts[0].startswith("On branch main")
    assert texts[-2] == " a.txt | 2 +-\n 1 file changed, 1 insertion(+), 1 deletion(-)"


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_a_repository_with_a_submodule_and_a_linked_work_tree_needs_no_approval(
    repository: Path, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git("init", "-q", folder=library)
    git("commit", "-q", "--allow-empty", "-m", "library", folder=library)
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "sub", folder=repository)
    git("worktree", "add", "-q", "linked", folder=repository)
    texts = await results(
        calls("shell", command="git status --short sub"), calls("shell", command="cd linked && git status --short")
    )
    assert texts == ["A  sub", "[no output]"]

    with (repository / ".git" / "modules" / "sub" / "config").open("a") as file:
        file.write(HOSTILE["clean"][0])
    (text,) = await results(calls("shell", command="git status --short sub"))
    assert text.startswith(NEEDS_APPROVAL)


HOSTILE = {
    "fsmonitor": ("[core]\n\tfsmonitor = ./x\n", ""),
    "textconv": ('[diff "x"]\n\ttextconv = ./x\n', "* diff=x\n"),
    "diff command": ('[diff "x"]\n\tcommand = ./x\n', "* diff=x\n"),
    "deprecated section": ("[diff.x]\n\tcommand = ./x\n", "* diff=x\n"),
    "on one line": ('[diff "x"] command = ./x\n', "* diff=x\n"),
    "continued": ('[user]\n\tname = a\\\n\n[diff "x"]\n\tcommand = ./x\n', "* diff=x\n"),
    "external diff": ("[diff]\n\texternal = ./x\n", ""),
    "clean": ('[filter "x"]\n\tclean = ./x\n', "* filter=x\n"),
    "process": ('[filter "x"]\n\tprocess = ./x\n', "* filter=x\n"),
    "include": ("[include]\n\tpath = ../more\n", "* diff=x\n"),
    "worktree settings": ("[extensions]\n\tworktreeConfig = true\n", "* diff=x\n"),
    "signature": ("[log]\n\tshowSignature = true\n[gpg]\n\tprogram = ./x\n", ""),
    "pretty": ("[format]\n\tpretty = %G?\n[gpg]\n\tprogram = ./x\n", ""),
}


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
@pytest.mark.parametrize("kind", HOSTILE)
async def test_reading_commands_run_no_code_of_a_hostile_repository_without_approval(
    kind: str, repository: Path
) -> None:
    settings, attributes = HOSTILE[kind]
    with (repository / ".git" / "config").open("a") as file:
        file.write(settings)
    (repository / ".gitattributes").write_text(attributes)
    more = '[diff "x"]\n\tcommand = ./x\n'
    (repository / "more").write_text(more)
    (repository / ".git" / "config.worktree").write_text(more)
    trap = repository / "x"
    trap.write_text("#!/bin/sh\n>>ran\ncat\n")
    trap.chmod(0o755)
    await results(*(calls("shell", command=command) for command in READS))

    assert not (repository / "ran").exists()


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_a_repository_inside_another_folder_is_looked_into_as_well(repository: Path) -> None:
    trap = '[core]\n\tbare = false\n[filter "x"]\n\tclean = ">>../ran; cat"\n[diff "x"]\n\tcommand = >>../ran\n'
    for name in ("vendor", "sub"):
        inner = repository / name
        inner.mkdir()
        git("init", "-q", folder=inner)
        (inner / "b.txt").write_text("b\n")
        git("add", ".", folder=inner)
        git("commit", "-qm", "inner", folder=inner)
        (inner / "b.txt").write_text("c\n")
        (inner / ".gitattributes").write_text("* filter=x diff=x\n")
        (inner / ".git" / "config").write_text(trap)
    texts = await results(calls("shell", command="cd vendor && git status"), calls("shell", command="git -C sub diff"))
    assert [text.startswith(NEEDS_APPROVAL) for text in texts] == [True, True]

    git("add", "sub", folder=repository)  # a submodule: git looks into it for changes
    texts = await results(calls("shell", command="git status"), calls("shell", command="cd src; git diff"))
    assert [text.startswith(NEEDS_APPROVAL) for text in texts] == [True, True]
    assert not (repository / "ran").exists()


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_a_bare_repository_in_a_folder_is_not_used(repository: Path) -> None:
    """Neither by a reading command nor by a script that calls git."""
    bare = repository / "vendor"
    bare.mkdir()
    git("init", "-q", "--bare", folder=bare)
    (bare / "config").write_text("[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = >>ran\n")
    texts = await results(calls("shell", command="cd vendor && git status"))
    assert texts[0].startswith(NEEDS_APPROVAL)

    free = Policy(require_approval_for_medium_risk=False, allowed_commands=("git", "sh", "cd"))
    (repository / "script").write_text("cd vendor && git status\n")
    texts = await results(
        calls("shell", command="cd vendor && git status"), calls("shell", command="sh script"), policy=free
    )
    assert all("bare repository" in text for text in texts)
    assert not (bare / "ran").exists()


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_git_diff_writes_no_index_for_a_file_that_was_only_touched(repository: Path) -> None:
    hook = repository / ".husky" / "post-index-change"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\n>>ran\n")
    hook.chmod(0o755)
    (repository / "a.txt").write_text("one\n")
    os.utime(repository / "a.txt", (1, 1))
    await results(calls("shell", command="git diff"))

    assert not (repository / "ran").exists()


@pytest.mark.real_time
async def test_a_reading_command_writes_no_index_and_starts_no_hook(repository: Path) -> None:
    hooks = repository / ".husky"
    hooks.mkdir()
    (hooks / "post-index-change").write_text("#!/bin/sh\n>>ran\n")
    (hooks / "post-index-change").chmod(0o755)
    before = (repository / ".git" / "index").read_bytes()
    os.utime(repository / "a.txt", (1, 1))
    texts = await results(*(calls("shell", command=command) for command in (*READS, "git diff HEAD", "git diff -M")))

    assert [text for text in texts if text.startswith("Security policy")] == []
    assert (repository / ".git" / "index").read_bytes() == before
    assert not (repository / "ran").exists()


# ---- repositories that git reads in another way than it seems --------------------------------------------------------

TRAP = "#!/bin/sh\n>>{ran}\ncat\n"
RUNS_TRAP = '[filter "x"]\n\tclean = {x}\n[diff "x"]\n\ttextconv = {x}\n[core]\n\tfsmonitor = {x}\n'


class Trap:
    """A program that leaves the file `ran`, and settings that let git start it."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.program = repository / "x"
        self.program.write_text(TRAP.format(ran=repository / "ran"))
        self.program.chmod(0o755)
        self.settings = RUNS_TRAP.format(x=self.program)

    def hostile(self, folder: Path) -> Path:
        """A repository with a changed file and these settings."""
        folder.mkdir(parents=True, exist_ok=True)
        git("init", "-q", folder=folder)
        (folder / "b.txt").write_text("b\n")
        (folder / ".gitattributes").write_text("* filter=x diff=x\n")
        git("add", ".", folder=folder)
        git("commit", "-qm", "inner", folder=folder)
        (folder / "b.txt").write_text("c\n")
        self.append(folder / ".git" / "config", self.settings)
        return folder

    def append(self, file: Path, text: str) -> None:
        with file.open("a") as opened:
            opened.write(text)


def signed_commit(trap: Trap) -> list[str]:
    """A commit with a signature, which git shows to the program of the settings if a format asks for it."""
    trap.append(trap.repository / ".git" / "config", f"[gpg]\n\tprogram = {trap.program}\n")
    tree = subprocess.check_output(["git", "write-tree"], cwd=trap.repository, text=True).strip()
    lines = [f"tree {tree}", "author A <a@b> 0 +0000", "committer A <a@b> 0 +0000"]
    lines += ["gpgsig -----BEGIN PGP SIGNATURE-----", " ", " x", " -----END PGP SIGNATURE-----", "", "text", ""]
    made = ["git", "hash-object", "-t", "commit", "-w", "--stdin"]
    commit = subprocess.check_output(made, cwd=trap.repository, input="\n".join(lines), text=True).strip()
    (trap.repository / ".git" / "refs" / "heads" / "main").write_text(f"{commit}\n")
    return ["git log --format=%+GK", "git log --format='%-G?'", "git show --format='% GS'"]


def submodule_with_a_monitor(trap: Trap) -> list[str]:
    """git takes settings of its environment from a git that it starts in a submodule."""
    sub = trap.repository / "sub"
    trap.hostile(sub)
    (sub / ".git" / "config").write_text(f"[core]\n\tfsmonitor = {trap.program}\n")
    git("add", "sub", folder=trap.repository)
    return ["git status", "git diff"]


def summary_of_submodules(trap: Trap) -> list[str]:
    """The submodule is in the last commit and no longer in the index."""
    sub = trap.repository / "sub"
    trap.hostile(sub)
    git("add", "sub", folder=trap.repository)
    (trap.repository / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ./sub\n')
    git("add", ".gitmodules", folder=trap.repository)
    git("commit", "-qm", "sub", folder=trap.repository)
    git("rm", "-q", "--cached", "sub", folder=trap.repository)
    trap.append(trap.repository / ".git" / "config", "[status]\n\tsubmoduleSummary = true\n")
    return ["git status"]


def work_tree_elsewhere(trap: Trap) -> list[str]:
    other = trap.repository / "other"
    sub = other / "sub"
    trap.hostile(sub)
    git("--work-tree=other", "add", "sub", folder=trap.repository)
    trap.append(trap.repository / ".git" / "config", "[core]\n\tworktree = ../other\n")
    return ["git status", "git diff"]


def _inner(trap: Trap) -> Path:
    """A folder of the hostile repository with a `.git` that looks well."""
    outer = trap.hostile(trap.repository / "outer")
    inner = outer / "inner"
    for name in ("objects", "refs"):
        (inner / ".git" / name).mkdir(parents=True)
    (inner / ".git" / "config").write_text("[core]\n\tbare = false\n")
    (inner / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return inner


def common_folder_without_objects(trap: Trap) -> list[str]:
    inner = _inner(trap)
    (inner / "common").mkdir()
    (inner / "common" / "config").write_text("[core]\n\tbare = false\n")
    (inner / ".git" / "commondir").write_text("../common\n")
    return ["cd outer/inner && git status", "git -C outer/inner diff"]


def linked_head(trap: Trap) -> list[str]:
    inner = _inner(trap)
    (inner / ".git" / "HEAD").rename(inner / "head")
    (inner / ".git" / "HEAD").symlink_to("../head")
    return ["cd outer/inner && git status", "git -C outer/inner diff"]


def closed_objects(trap: Trap) -> list[str]:
    inner = _inner(trap)
    (inner / ".git" / "objects").chmod(0)
    return ["cd outer/inner && git status", "git -C outer/inner diff"]


def folder_of_the_process(trap: Trap) -> list[str]:
    """The same name is another repository for git, which works in the folder `sub`, than for the process that looks."""
    (trap.repository / ".git").rename(trap.repository / "g")
    (trap.repository / ".git").write_text("gitdir: /proc/self/cwd/g\n")
    inner = trap.hostile(trap.repository / "sub")
    (inner / ".git").rename(inner / "g")
    (inner / ".git").write_text("gitdir: /proc/self/cwd/g\n")
    return ["cd sub && git status", "git -C sub diff"]


def git_file_with_a_carriage_return(trap: Trap) -> list[str]:
    """git cuts the carriage return off: the folder that has it in its name is not the repository."""
    inner = trap.hostile(trap.repository / "sub")
    (inner / ".git").rename(inner / "g")
    shutil.copytree(trap.repository / ".git", inner / "g\r")
    (inner / ".git").write_bytes(b"gitdir: g\r\n")
    return ["cd sub && git status", "git -C sub diff"]


def common_folder_with_a_carriage_return(trap: Trap) -> list[str]:
    inner = trap.hostile(trap.repository / "sub")
    shutil.copytree(inner / ".git", inner / "g")
    shutil.copytree(trap.repository / ".git", inner / "g\r")
    shutil.copy(trap.repository / ".git" / "config", inner / ".git" / "config")
    (inner / ".git" / "commondir").write_bytes(b"../g\r\n")
    return ["cd sub && git status", "git -C sub diff"]


PREPARED = (
    git_file_with_a_carriage_return,
    common_folder_with_a_carriage_return,
    signed_commit,
    submodule_with_a_monitor,
    summary_of_submodules,
    work_tree_elsewhere,
    common_folder_without_objects,
    linked_head,
    closed_objects,
    folder_of_the_process,
)


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
@pytest.mark.parametrize("prepare", PREPARED, ids=lambda prepare: prepare.__name__)
async def test_a_prepared_repository_runs_no_code_without_approval(
    prepare: Callable[[Trap], list[str]], repository: Path
) -> None:
    commands = prepare(Trap(repository))
    texts = await results(*(calls("shell", command=command) for command in commands))

    assert not (repository / "ran").exists(), texts
    assert [text.startswith(NEEDS_APPROVAL) for text in texts] == [True] * len(commands), texts


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
@pytest.mark.parametrize("link", ["l/../evil", "./l/.././evil/"])
async def test_the_folder_of_a_call_is_the_one_that_the_kernel_finds(repository: Path, link: str) -> None:
    trap = Trap(repository)
    trap.hostile(repository / "deep" / "evil")
    (repository / "deep" / "inner").mkdir()
    (repository / "evil").mkdir()
    (repository / "l").symlink_to("deep/inner")
    (repository / "a").symlink_to("deep/inner")
    (repository / "outer").mkdir()
    (repository / "m").symlink_to("outer")
    commands = (f"git -C {link} status", f"cd {link}; git status", "cd m/../a; git -C ../evil status")
    texts = await results(
        calls("shell", command="git status", working_dir=link), *(calls("shell", command=line) for line in commands)
    )

    assert not (repository / "ran").exists(), texts
    assert [text.startswith(NEEDS_APPROVAL) for text in texts] == [True] * 4, texts


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_settings_that_change_after_the_decision_are_noticed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = Trap(repository)
    (repository / ".gitattributes").write_text("* filter=x diff=x\n")
    made = shell_tool.mounts_of

    def mounts_after_a_change(*args: Any, **kwargs: Any) -> Any:
        trap.append(repository / ".git" / "config", trap.settings)
        return made(*args, **kwargs)

    monkeypatch.setattr(shell_tool, "mounts_of", mounts_after_a_change)
    (text,) = await results(calls("shell", command="git status"))

    assert text == "the settings of the repository have changed since this was allowed; call again"
    assert not (repository / "ran").exists()


@pytest.mark.parametrize(
    "command",
    [
        "git whatchanged",  # an alias can replace it in newer versions of git
        "git for-each-ref --format '%(signature)'",
        "git for-each-ref --sort signature:key",
        "git shortlog --group format:%GK",
        "git log --format=%+GK",
    ],
)
def test_commands_that_git_lets_settings_replace_or_extend_are_not_of_low_risk(command: str) -> None:
    assert risk_of(parse(command)) is Risk.MEDIUM


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_a_repository_folder_without_objects_of_its_own_is_not_passed_over(repository: Path) -> None:
    """Newer versions of git use such a folder below `.git/modules` although it is bare."""
    evil = repository / ".git" / "modules" / "evil"
    evil.mkdir(parents=True)
    (evil / "HEAD").write_text("ref: refs/heads/main\n")
    (evil / "commondir").write_text("../../../common\n")
    (text,) = await results(calls("shell", command="cd .git/modules/evil && git log"))

    assert text.startswith(NEEDS_APPROVAL)


@NEEDS_GIT
@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_time
async def test_an_index_with_whole_folders_is_not_read_with_certainty(repository: Path) -> None:
    index = repository / ".git" / "index"
    body = bytearray(index.read_bytes()[:-20])
    body[36:40] = (0o40000).to_bytes(4, "big")
    index.write_bytes(bytes(body) + hashlib.sha1(body).digest())
    (text,) = await results(calls("shell", command="git status"))

    assert text.startswith(NEEDS_APPROVAL)
