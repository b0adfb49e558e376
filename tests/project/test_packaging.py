"""What is published: extras, bounds of requirements, the files of the sdist and of the wheel."""

import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from retinue.tools.web import extract, search
from tests.project.repository import ROOT, extras, git_files, pyproject

NAMED_EXTRA = re.compile(r"""["'](?:retinue|\.)\[([a-z, ]+)\]["']|\bextras? `([a-z]+)`""")
"""An extra in a command, `pip install '.[fetch]'`, or in prose, "the extra `fetch`"."""

SEARCHED = ("*.md", "Makefile", "pyproject.toml", "docs/**/*.md", "examples/**/*", "scripts/*.py", "src/**/*.py")

CAPPED = {"ddgs"}
"""Requirements with an upper bound; pyproject.toml gives the reason next to each."""


def named_extras() -> Iterator[tuple[str, str]]:
    """Each extra that a file names, with the name of the file."""
    for pattern in SEARCHED:
        for file in ROOT.glob(pattern):
            if file.is_file() and "__pycache__" not in file.parts:
                for listed, single in NAMED_EXTRA.findall(file.read_text(encoding="utf-8")):
                    for extra in (listed or single).split(","):
                        yield file.relative_to(ROOT).as_posix(), extra.strip()


def requirements(extra: str) -> list[Requirement]:
    """The requirements of an extra, with those of the extras that it includes."""
    resolved: list[Requirement] = []
    for requirement in map(Requirement, extras()[extra]):
        if requirement.name == "retinue":
            resolved += [each for included in sorted(requirement.extras) for each in requirements(included)]
        else:
            resolved.append(requirement)
    return resolved


def names(found: list[Requirement]) -> set[str]:
    return {requirement.name for requirement in found}


def test_every_extra_that_a_file_names_exists() -> None:
    named = set(named_extras())

    assert {"Makefile", "pyproject.toml", "src/retinue/tools/web/extract.py"} <= {file for file, _ in named}
    assert sorted((file, extra) for file, extra in named if extra not in extras()) == []


def test_the_extra_web_is_fetch_and_search() -> None:
    assert names(requirements("web")) == names(requirements("fetch")) | names(requirements("search"))


@pytest.mark.parametrize(
    ("message", "extra", "package"),
    [
        (extract.MISSING, "fetch", "trafilatura"),
        (search.MISSING, "search", "ddgs"),
        (search.NOT_SET_UP, "search", "ddgs"),
    ],
    ids=["fetch", "search", "search by itself"],
)
def test_the_message_about_a_missing_package_names_the_extra_that_brings_it(
    message: str, extra: str, package: str
) -> None:
    assert message.endswith(f"install the extra `{extra}` from the repository: pip install '.[{extra}]'")
    assert package in names(requirements(extra))
    assert [other for other in ("fetch", "search") if package in names(requirements(other))] == [extra]


def test_only_requirements_with_a_known_break_have_an_upper_bound() -> None:
    required = [Requirement(each) for each in pyproject()["project"]["dependencies"]]
    required += [requirement for extra in extras() for requirement in requirements(extra)]

    assert {each.name for each in required if is_capped(each)} == CAPPED


def is_capped(requirement: Requirement) -> bool:
    return any(bound.operator in {"<", "<=", "==", "~="} for bound in requirement.specifier)


@pytest.mark.parametrize(("platform", "needed"), [("linux", False), ("darwin", False), ("win32", True)])
def test_time_zones_are_installed_where_the_platform_has_none(platform: str, needed: bool) -> None:
    (tzdata,) = [each for each in map(Requirement, pyproject()["project"]["dependencies"]) if each.name == "tzdata"]

    assert tzdata.marker is not None
    assert tzdata.marker.evaluate({"sys_platform": platform}) is needed


def test_every_development_requirement_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(Requirement(line).name) for line in lines}
    required = {canonicalize_name(name) for name in names(requirements("dev"))}

    assert sorted(required - pinned) == []


def build(target: str, folder: Path) -> Path:
    """The sdist or the wheel, built with the installed hatchling: an isolated build would need a network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.iterdir()
    return built


def test_the_sdist_has_every_file_of_the_checkout(tmp_path: Path) -> None:
    files = git_files()
    if files is None:
        pytest.skip("only a git checkout knows which files are its own")
    with tarfile.open(build("sdist", tmp_path)) as archive:
        packed = sorted(member.name.partition("/")[2] for member in archive.getmembers() if member.isfile())

    assert packed == sorted([*files, "PKG-INFO"])


def test_the_wheel_has_the_package_the_demo_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel", tmp_path)) as archive:
        packed = set(archive.namelist())

    demo = {f"retinue/cli/demo/incident/{name}" for name in ("mytools.py", "retinue.toml")}
    sources = {f"retinue/{file.relative_to(ROOT / 'src/retinue').as_posix()}" for file in package_files()}
    assert {name for name in packed if not name.startswith("retinue-")} == sources | demo
    assert "retinue/py.typed" in sources


def package_files() -> Iterator[Path]:
    for file in (ROOT / "src" / "retinue").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


def test_the_repository_has_no_symbolic_links() -> None:
    folders = [ROOT / name for name in ("src", "tests", "docs", "examples", "scripts", "bench", ".github", ".ci")]
    files = [file for folder in folders for file in (folder, *folder.rglob("*"))]
    files += [file for file in ROOT.iterdir() if file.name != ".venv"]

    assert [file.relative_to(ROOT).as_posix() for file in files if file.is_symlink()] == []
