"""The shell parser: the programs that a command line runs, and their risk."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from subprocess import DEVNULL

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.core.policy import Policy, Risk
from retinue.tools.shell.parser import parse, refusal_of
from retinue.tools.shell.risk import risk_of
from tests.conftest import STRESS


def names(command: str) -> list[str] | str:
    parsed = parse(command)
    return "unreadable" if parsed.unreadable else [step.name for step in parsed.steps]


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
        ("ls # '\nrm -rf x # '", ["ls", "rm"]),
        ("ls '#' x\\\ny", ["ls"]),
        ("find . \\( -name a -o ! -name b \\)", ["find"]),
        ("grep '|' x; echo ';' }", ["grep", "echo"]),
        ("ls \\\n -l", ["ls"]),
        ("> x", [""]),
        ("ls &>x rm y", "unreadable"),
        ("for PATH in .; do ls; done", "unreadable"),
        ("for i do rm x; done", "unreadable"),
        ("HOME=. git status", "unreadable"),
        ("$'rm' x", "unreadable"),
        ("echo ${x:-y}", "unreadable"),
        ("l? x", "unreadable"),
        ("'' x", "unreadable"),
        ("echo \\", "unreadable"),
        ('echo "$\\\n(rm x)"', "unreadable"),
        ("find . $\\\n(echo -delete)", "unreadable"),
        ("cat <\\\n<E\necho '\nE\nrm x #'", "unreadable"),
        ("ls &\\\n& rm", "unreadable"),
        ("ls \\\n| wc", ["ls", "wc"]),
        ("'A=/evil' ls", "unreadable"),
        ("A\\=/evil ls", "unreadable"),
        ("A+=/evil ls", "unreadable"),
        ("A='x y' ls", ["ls"]),
        ("PIP_PYTHON=./evil pip list", "unreadable"),
        ("OPENSSL_CONF=x node", "unreadable"),
        ("\u00b2>x ls", "unreadable"),
        ("printf -v PATH /evil; ls", "unreadable"),
        ("printf -vPATH /evil; ls", "unreadable"),
        ("x='-v PATH /evil'; printf $x; ls", "unreadable"),
        ("printf '%s\\n' $x", ["printf"]),
        ("test; [; printf", ["test", "[", "printf"]),
        ("[ -v 'a[$(id)]' ]", "unreadable"),
        ("x='-v a[$(id>f)]'; [ $x ]", "unreadable"),
        ("x=-v; test \"$x\" 'a[$(id)]'", "unreadable"),
        ('[ -f "$x" ] && [ "$x" = y ] && ls', ["[", "[", "ls"]),
        ("[ $? -eq 0 ] && ls", ["[", "ls"]),
        ("[[ -f x ]]", "unreadable"),
        ("python - <<'EOF'\nrm x; echo $(id) '\nEOF\nls", ["python", "ls"]),
        ('cat > x <<"E" && ls\nrm\nE', ["cat", "ls"]),
        ("cat <<'A' <<-'B' | wc\nA \nA\n\t\tB\nrm", ["cat", "wc", "rm"]),
        ("cat <<'A'\n\tA\nrm\nA\nls", ["cat", "ls"]),
        ("cat <<'A'\nrm", "unreadable"),
        ("cat <<'A'", "unreadable"),
        ("cat <<A'B'\nAB\nrm", "unreadable"),
        ("cat <<'A' '\nA\n'\nrm", "unreadable"),
        ("cat <<'A' \\\nA\nrm\nA", "unreadable"),
        ("cat <<'A' \"\nA\n\"\nrm", "unreadable"),
        ("NODE_ENV=test npm test; RUST_BACKTRACE=1 cargo test", ["npm", "cargo"]),
        ("GIT_EDITOR=true git rebase --continue; GIT_PAGER= git log", ["git", "git"]),
        ("GIT_EDITOR=./evil git commit", "unreadable"),
        ("GIT_EDITOR=$x git commit", "unreadable"),
        ("PYTHONPATH=src python -m pytest; PYTHONPATH=. pytest", ["python", "pytest"]),
        ("PYTHONPATH=. pip list", "unreadable"),
        ("PYTHONPATH=.; pip list", "unreadable"),
        ("while IFS= read -r line; do echo $line; done < x", ["read", "echo"]),
        ("IFS=x; ls", "unreadable"),
        ("read PATH < x; ls", "unreadable"),
        ("read $x; ls", "unreadable"),
        ("read GIT_EDITOR < x; git commit", "unreadable"),
        ("export GIT_EDITOR; git commit", "unreadable"),
        ("export GIT_EDITOR=true; git commit", ["export", "git"]),
        ("set -euo pipefail; export A=b C; ls & wait", ["set", "export", "ls", "wait"]),
        ("set -k; ls PATH=.", "unreadable"),
        ("set -$x; ls", "unreadable"),
        ("export PATH=.; ls", "unreadable"),
        ("export 'PA'TH=.; ls", "unreadable"),
        ("export A=$x; ls", "unreadable"),
        ('export "$x"; ls', "unreadable"),
        ('export A="$x"; ls', ["export", "ls"]),
        ("for i in a b; do ls $i && break; done", ["ls", "break"]),
        ("RANDOM='a[$(id)]'; ls", "unreadable"),
        ("OPTIND=x ls", "unreadable"),
        ("for SECONDS in 'a[$(id)]'; do ls; done", "unreadable"),
        ("read -r HISTCMD < x", "unreadable"),
        ("COLUMNS=200 ls; OPTIND=1", ["ls"]),
        ("LC_ALL=zh_CN.GBK\nls \u00e9\\;rm", "unreadable"),
        ("export LANG=ja_JP.SJIS; ls", "unreadable"),
        ("export LC_ALL=C.UTF-8 LANG=en_US.utf8; LC_ALL=de_DE ls", ["export", "ls"]),
        ("printf -- '- %s\\n' a; printf '--- %d\\n' 7", ["printf", "printf"]),
        ("printf -- -v x", ["printf"]),
        ("printf %n PATH", "unreadable"),
        ("printf '%*d' 1 2", "unreadable"),
        ('printf "$x"', "unreadable"),
        ("ls {fd}>x", "unreadable"),
        ("ls 12>x", "unreadable"),
        ("ls 2>x", ["ls"]),
        ("ls >&-rm x", "unreadable"),
        (">&-rm ls", "unreadable"),
        ("cat >& -q", "unreadable"),
        ("cat <& \t-q", "unreadable"),
        ("cat >& \\\n-q", "unreadable"),
        ("cat >& - q", ["cat"]),
        ("ls <&\\\n-rm x", "unreadable"),
        ("ls >&- 2>&1 <&0", ["ls"]),
        ("ls 2>&- | cat", ["ls", "cat"]),
        ("((ls))", "unreadable"),
        ("( (ls) )", ["ls"]),
        ("wait $! %1 123; wait", ["wait", "wait"]),
        ("wait -n", "unreadable"),
        ("wait $x", "unreadable"),
        ("cat < /dev/tcp/a/1", "unreadable"),
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
        ("git -C . push", Risk.MEDIUM),
        ("git --git-dir status push", Risk.MEDIUM),
        ("git diff --outp=x", Risk.MEDIUM),
        ("git grep -c pool", Risk.LOW),
        ("git show HEAD@{1}", Risk.LOW),
        ("git grep -Orm pool", Risk.HIGH),
        ("git log --ext-d", Risk.HIGH),
        ("npm run-script x", Risk.MEDIUM),
        ("npm --prefix a run b", Risk.MEDIUM),
        ("cargo +nightly run", Risk.MEDIUM),
        ("cargo tree", Risk.MEDIUM),
        ("echo hi > note.txt 2>/dev/null", Risk.MEDIUM),
        ("echo hi > 1", Risk.MEDIUM),
        ("> note.txt", Risk.MEDIUM),
        ("ls 2>&1", Risk.LOW),
        ("x=-delete; find . $x", Risk.HIGH),
        ("find . -del\\\nete", Risk.HIGH),
        ("find . -{delete,print}", Risk.HIGH),
        ("for f in a b; do grep -c x $f; done", Risk.LOW),
        ("x=--pre=sh; rg $x .", Risk.MEDIUM),
        ("sort -uo x", Risk.MEDIUM),
        ("uniq a b", Risk.MEDIUM),
        ("sed -n 1,50p x", Risk.LOW),
        ("sed 1e x", Risk.MEDIUM),
        ("sed -n 1p x -i", Risk.MEDIUM),
        ("find . | xargs rm", Risk.HIGH),
        ("sh -c 'ls; rm x'", Risk.HIGH),
        ("deploy", Risk.MEDIUM),
        ("./ls", Risk.MEDIUM),
        ("find ?delete", Risk.HIGH),
        ("find [-]exec rm", Risk.HIGH),
        ("find . -name *.py", Risk.LOW),
        ("sort ?o*", Risk.MEDIUM),
        ("sort src/*.txt", Risk.LOW),
        ("git diff ?-output=x", Risk.MEDIUM),
        ("x='a b'; uniq $x", Risk.MEDIUM),
        ("uniq a*", Risk.MEDIUM),
        ("uniq a", Risk.LOW),
        ("uniq - out", Risk.MEDIUM),
        ("uniq -- -a out", Risk.MEDIUM),
        ("env find . -delete", Risk.HIGH),
        ("nice timeout 5 git -c alias.x='!sh' x", Risk.HIGH),
        ("env LANG=C sort x", Risk.MEDIUM),
        ("grep -c x *", Risk.LOW),
        ("pip list --log x", Risk.MEDIUM),
        ("pip3 list", Risk.LOW),
        ("cargo tree --config build.rustc='./x'", Risk.MEDIUM),
        ("npm view x --git=./x", Risk.MEDIUM),
        ("file -Cm x", Risk.MEDIUM),
        ("file x", Risk.LOW),
        ("date -s tomorrow", Risk.MEDIUM),
        ("date -d tomorrow +%F", Risk.LOW),
        ("hostname evil", Risk.MEDIUM),
        ("hostname -f", Risk.LOW),
        ("git -c user.name=A -c user.email='a@b' commit -m x", Risk.MEDIUM),
        ("git -c user.name=A -c core.pager=sh log", Risk.HIGH),
        ("git -c", Risk.HIGH),
        ("export A=b; set -e; ls & wait", Risk.LOW),
        ("PYTHONPATH=. python --version", Risk.MEDIUM),
        ("cat <<'E' > x\nE", Risk.MEDIUM),
        ("grep x <<'E'\nx\nE", Risk.LOW),
        ('find "./$x" -name y', Risk.LOW),
        ('find "$x" -name y', Risk.HIGH),
    ],
)
def test_the_worst_part_of_a_command_is_its_risk(command: str, risk: Risk) -> None:
    assert risk_of(parse(command)) is risk


def test_a_command_that_is_not_on_the_list_is_refused_with_the_list() -> None:
    policy = Policy(allowed_commands=("ls", "git"))

    assert refusal_of(parse("ls -l | git log"), policy) is None
    assert refusal_of(parse("ls; curl x"), policy) == (
        "Security policy: command 'curl' is not allowed (allowed_commands); use one of: ls, git"
    )
    assert refusal_of(parse("./ls"), policy) == (
        "Security policy: './ls' names a program by its path; allowed are the commands of allowed_commands by their "
        "names: ls, git"
    )
    assert refusal_of(parse("ls `id`"), policy) == (
        "Security policy: substitutions such as $(...), `...` and <(...) are not read; run the inner command by itself"
    )


def test_a_program_may_be_listed_by_its_path() -> None:
    policy = Policy(allowed_commands=("./deploy.sh",))

    assert refusal_of(parse("./deploy.sh now > log.txt"), policy) is None
    assert refusal_of(parse("deploy.sh"), policy) is not None


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("find . -exec rm {} +", "rm"),
        ("find . -name x -execdir /bin/rm {} ';'", "/bin/rm"),
        ("find . -okdir rm {} ';'", "rm"),
        ("ls | xargs -0 -I {} rm {}", "rm"),
        ("xargs -n1 rm", "rm"),
        ("env -i LANG=C rm x", "rm"),
        ("timeout -k 1 5 rm x", "rm"),
        ("nice -5 nohup rm x", "rm"),
        ("xargs env rm", "rm"),
        ("find . -exec nice rm {} +", "rm"),
        ("find . -exec ls {} ';' -exec nice rm {} ';'", "rm"),
        ("timeout --signal=KILL 5 rm *", "rm"),
    ],
)
def test_allowed_commands_apply_to_commands_that_a_wrapper_runs(command: str, program: str) -> None:
    policy = Policy(allowed_commands=("ls", "find", "xargs", "env", "timeout", "nice", "nohup"))
    by = {"xargs env rm": "xargs", "nice -5 nohup rm x": "nice"}.get(command) or names(command)[-1]

    assert refusal_of(parse(command), policy) == (
        f"Security policy: command {program!r}, which {by!r} would start, is not allowed (allowed_commands); "
        "use one of: ls, find, xargs, env, timeout, nice, nohup"
    )


@pytest.mark.parametrize(
    "command",
    [
        "x=-exec; find . $x rm {} +",
        "find ?exec rm",
        'find "$x" rm {} +',
        "env -S 'rm x'",
        "env --split-string='rm x'",
        "xargs --null rm",
        "echo rm x | xargs env",
        "echo -exec rm | xargs find .",
        "echo rm | xargs -I ls ls",
        "echo rm | xargs -I X env X",
        "find . -exec env {} ';'",
        "find . -exec {} ';'",
        "timeout 5 * x",
        'env "$x" ls',
        "env $x ls",
    ],
)
def test_wrappers_with_undecidable_arguments_are_refused(command: str) -> None:
    policy = Policy(allowed_commands=("echo", "ls", "find", "env", "xargs", "timeout"))

    assert "it is not known what" in str(refusal_of(parse(command), policy))


def test_a_variable_by_which_programs_are_found_is_not_set_by_another_command_either() -> None:
    policy = Policy(allowed_commands=("ls", "env", "nice", "xargs", "python"))

    for command in ("env PATH=. ls", "nice env A=b LD_PRELOAD=x ls", "xargs env PATH=. ls"):
        assert "changes what programs mean; leave it out" in str(refusal_of(parse(command), policy))
    assert refusal_of(parse("env A=b NODE_ENV=test ls"), policy) is None
    assert refusal_of(parse("env PYTHONPATH=src python x.py"), policy) is None


@pytest.mark.parametrize(
    "command",
    [
        "find . -name *.py",
        "find ~/src src/* -type f",
        'for d in a b; do find "./$d" -name x; done',
        "timeout 60 python -m pytest tests/test_*.py $x",
        "timeout --signal=KILL 60s python x.py",
        "env LANG=C ls *.txt",
        "ls | xargs -I {} grep x {}",
        "find . -name '*.py' -exec nice grep x {} +",
    ],
)
def test_unknown_words_that_cannot_choose_a_program_are_allowed(command: str) -> None:
    policy = Policy(allowed_commands=("ls", "find", "env", "nice", "timeout", "xargs", "grep", "python"))

    assert refusal_of(parse(command), policy) is None


def test_a_wrapper_may_run_allowed_commands() -> None:
    policy = Policy(allowed_commands=("find", "xargs", "grep", "wc"))

    assert refusal_of(parse("find . -exec grep -c x {} + | xargs wc -l"), policy) is None
    assert refusal_of(parse("find . -name '*.py'"), policy) is None


@given(st.text(max_size=60))
def test_any_text_can_be_read(command: str) -> None:
    assert risk_of(parse(command)) in tuple(Risk)


@given(st.lists(st.text(max_size=8), max_size=4), st.sampled_from(["&&", "||", ";", "|", "\n"]))
def test_quoted_arguments_never_hide_a_command_that_follows(arguments: list[str], between: str) -> None:
    quoted = " ".join(map(shlex.quote, arguments))
    found = names(f"echo {quoted} {between} rm x")
    assert found == "unreadable" or "rm" in found


PIECES = (
    *("a", "b", "c", " ", " ", "\n", ";", "&", "&&", "|", "'", '"', "\\", "#", "$", "(", ")", "{ ", "; }", "<", ">"),
    *("2>&1", "`", "!", "=", "if ", "; then ", "; fi", "for x in b; do ", "; done", "case a in ", "a) ", ";;", " esac"),
    *(
        "x=a ",
        "$x",
        "${x}",
        "$'",
        "2>",
        "*",
        "\\\n",
        "\t",
        "\r",
        "true ",
        "<<a",
        "<<<",
        "&>",
        "|&",
        ">&",
        "a()",
        "{a,b}",
        "$\\\n",
        "<\\\n<",
        "x'=a'",
        "x+=",
        "printf ",
        "[ ",
        "time ",
        "<<'a' ",
        '<<-"a"',
        "\na\n",
        "\n\ta\n",
        "export ",
        "set -e;",
        "read x",
        "$?",
    ),
)


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no shell here")
@settings(max_examples=2000 if STRESS else 150, deadline=None)
@given(st.sampled_from(["a ", "b;", "x=b ", "{ "]), st.lists(st.sampled_from(PIECES), min_size=1, max_size=12))
def test_a_real_shell_starts_nothing_that_was_not_seen(begin: str, pieces: list[str]) -> None:
    command = begin + "".join(pieces)
    seen = names(command)
    if seen == "unreadable":
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name in "abc":
            program = Path(folder, "bin", name)
            program.parent.mkdir(exist_ok=True)
            program.write_text(f'#!/bin/sh\n> "$FOUND/{name}"\n')
            program.chmod(0o755)
        found, work = Path(folder, "found"), Path(folder, "work")
        found.mkdir()
        work.mkdir()
        environment = {"PATH": f"{folder}/bin", "FOUND": str(found)}
        subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=work,
            env=environment,
            stdin=DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
        assert {each.name for each in found.iterdir()} <= set(seen)
