"""Workflows, hooks, templates and notes agree with the project that they describe."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import retinue
from tests.project.repository import GITHUB, ROOT, WORKFLOWS, load_yaml, make_targets, pyproject

YAML_FILES = sorted([*GITHUB.rglob("*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"])
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "examples" / "README.md", GITHUB / "pull_request_template.md"]

MAKE = re.compile(r"(?:^|[;&(])\s*make (?:-s )?([a-z][a-z-]*)", re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
CLASSIFIER = "Programming Language :: Python :: 3."


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def jobs(workflow: Path) -> dict[str, Any]:
    return load_yaml(workflow)["jobs"]


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(workflow).values():
        yield from job["steps"]


def test_there_are_workflows_for_tests_and_for_releases() -> None:
    assert [workflow.name for workflow in WORKFLOWS] == ["ci.yml", "release.yml"]


@pytest.mark.parametrize("file", YAML_FILES, ids=name_of)
def test_every_yaml_file_is_a_mapping(file: Path) -> None:
    assert isinstance(load_yaml(file), dict)


def test_the_matrix_is_the_pythons_of_the_classifiers_on_linux_and_macos() -> None:
    matrix = jobs(GITHUB / "workflows" / "ci.yml")["test"]["strategy"]["matrix"]
    project = pyproject()["project"]
    pythons = [f"3.{each.removeprefix(CLASSIFIER)}" for each in project["classifiers"] if each.startswith(CLASSIFIER)]

    assert matrix == {"os": ["ubuntu-latest", "macos-latest"], "python": pythons}
    assert project["requires-python"] == f">={pythons[0]}"


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name_of)
def test_workflows_may_only_read_and_every_job_has_a_timeout(workflow: Path) -> None:
    assert load_yaml(workflow)["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs(workflow).items() if "timeout-minutes" not in job] == []


def test_only_the_publishing_job_gets_an_identity_and_it_runs_in_an_environment() -> None:
    privileged = {
        (workflow.name, name): (job["permissions"], job.get("environment"))
        for workflow in WORKFLOWS
        for name, job in jobs(workflow).items()
        if "permissions" in job
    }

    assert privileged == {("release.yml", "publish"): ({"id-token": "write"}, "release")}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name_of)
def test_every_action_names_its_version(workflow: Path) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d+|release/v\d+)", action)] == []


def commands() -> Iterator[tuple[str, str]]:
    """Each command that a workflow, a hook or a page names, with the name of its file."""
    for workflow in WORKFLOWS:
        for step in steps(workflow):
            yield name_of(workflow), step.get("run", "")
    for repository in load_yaml(ROOT / ".pre-commit-config.yaml")["repos"]:
        for hook in repository["hooks"]:
            yield ".pre-commit-config.yaml", hook["entry"]
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for code in CODE.findall(text):
            yield name_of(page), code
        for line in text.splitlines():
            if line.startswith("make "):
                yield name_of(page), line


def test_every_make_target_that_a_file_names_exists() -> None:
    named = {(file, target) for file, command in commands() for target in MAKE.findall(command)}

    assert {"ci.yml", "release.yml"} <= {Path(file).name for file, _ in named}
    assert {"AGENTS.md", "CONTRIBUTING.md", ".pre-commit-config.yaml"} <= {file for file, _ in named}
    assert sorted((file, target) for file, target in named if target not in make_targets()) == []


def test_the_program_in_the_script_of_ci_imports_what_exists() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    programs = re.findall(r"<<'PYTHON'\n(.*?)^PYTHON$", script, re.DOTALL | re.MULTILINE)
    imports = [line for program in programs for line in program.splitlines() if line.startswith(("from ", "import "))]

    assert any("retinue" in line for line in imports)
    exec("\n".join(imports), {})


def test_every_make_target_is_phony_and_explained() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    explained = set(re.findall(r"^([a-z][a-z-]*):.*## \S", makefile, re.MULTILINE))

    assert phony == explained == make_targets()


def test_the_demo_names_the_steps_of_its_install_and_installs_no_tools_of_developers(tmp_path: Path) -> None:
    command = ["make", "--dry-run", "--no-print-directory", "demo", f"VENV={tmp_path / 'venv'}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    steps = re.findall(r'echo "(\[[^"]*)"', printed)
    assert [step.replace(str(tmp_path), "") for step in steps] == [
        "[1/2] creating the environment in /venv",
        "[2/2] installing Retinue and its dependencies into /venv",
    ]
    assert "[dev]" not in printed


def test_the_demo_prints_its_first_line_before_the_work_of_its_install_begins(tmp_path: Path) -> None:
    command = ["make", "--no-print-directory", "demo", f"VENV={tmp_path / 'venv'}", "PYTHON=false"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert ended.stdout == f"[1/2] creating the environment in {tmp_path / 'venv'}\n"
    assert ended.returncode != 0
    assert not (tmp_path / "venv").exists()


def test_an_environment_without_a_pip_gets_one_before_it_is_needed(tmp_path: Path) -> None:
    """The demo's environment has no pip, because making one takes seconds; the tools of developers go into it later."""
    venv = tmp_path / "with space"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    command = ["make", "--dry-run", "--no-print-directory", "venv", f"VENV={venv}"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    step = re.sub(r'pip install -q .* -e "\.\[dev\]"', "pip --version", printed)
    assert step != printed

    done = subprocess.run(["sh", "-c", step], cwd=ROOT, capture_output=True, text=True, check=True)

    assert f"from {venv}" in done.stderr
    assert (venv / ".installed").exists()


def test_make_test_ends_with_the_sum_of_its_runs(tmp_path: Path) -> None:
    test = tmp_path / "test_two.py"
    test.write_text("import pytest\n\ndef test_passes(): pass\n\ndef test_skips(): pytest.skip('here')\n")
    counts = tmp_path / "counts"
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.conftest", "-c", os.devnull, str(test)],
            cwd=ROOT,
            env={**os.environ, "RETINUE_TEST_COUNTS": str(counts)},
            capture_output=True,
            check=True,
        )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (program,) = re.findall(r"awk '([^']*)' \"\$\$RETINUE_TEST_COUNTS\"", makefile)
    printed = subprocess.run(
        ["awk", program.replace("$$", "$"), str(counts)], capture_output=True, text=True, check=True
    ).stdout

    assert printed == "all tests passed: 2 passed, 2 skipped\n"


def test_every_make_target_is_in_the_table_of_the_contributing_page() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")

    assert sorted(target for target in make_targets() - {"help"} if f"`make {target}" not in page) == []


def test_the_hooks_are_valid_and_have_the_check_of_titles() -> None:
    validated = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")],
        capture_output=True,
        text=True,
    )
    hooks = [hook for each in load_yaml(ROOT / ".pre-commit-config.yaml")["repos"] for hook in each["hooks"]]

    assert validated.returncode == 0, validated.stdout
    assert [hook["entry"] for hook in hooks if hook.get("stages") == ["commit-msg"]] == [
        "python3 scripts/commit_title.py"
    ]


@pytest.mark.parametrize("file", sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=name_of)
def test_issue_forms_have_a_name_a_description_and_fields_with_labels(file: Path) -> None:
    form = load_yaml(file)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    ids = [field["id"] for field in fields]

    assert form["name"]
    assert form["description"]
    assert all(field["attributes"]["label"] for field in fields)
    assert ids
    assert len(ids) == len(set(ids))


def test_the_bug_form_offers_every_dialect() -> None:
    from retinue.dialects.registry import PACKAGES

    fields = {field.get("id"): field for field in load_yaml(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")["body"]}

    assert set(PACKAGES) <= set(fields["dialect"]["attributes"]["options"])


def test_the_citation_has_the_version_and_licence_of_the_package() -> None:
    citation = load_yaml(ROOT / "CITATION.cff")
    project = pyproject()["project"]

    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert (str(citation["version"]), citation["license"]) == (retinue.__version__, project["license"])
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in project["authors"]]


def test_the_change_log_has_the_version_of_the_package() -> None:
    page = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[?(\S+?)\]?(?:\s|$)", page, re.MULTILINE)

    assert retinue.__version__ in headings
