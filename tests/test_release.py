"""What a release says of itself is said alike everywhere, as far as reading can tell.

Building, installing and running is `make release-check`.
"""

import re
import shlex
import tomllib
from email.message import Message

import pytest
import yaml

import antipgd
import release
from release import PROJECT, REPOSITORY, ROOT
from versions import pythons

CONDA = {"torch": "pytorch", "ray": "ray-core", "matplotlib": "matplotlib-base"}  # its own names
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGES = f"# Changelog\n\n## {antipgd.__version__} (2026-01-31)\n\n- A.\n\n## 0.0.1 (2020-01-01)\n"
CITED = f"version: {antipgd.__version__}\ndate-released: 2026-01-31\nauthors:\n"
TAG = f"v{antipgd.__version__}"


def text(path):
    return (ROOT / path).read_text("utf-8")


def parsed(path):
    return yaml.safe_load(text(path))


CITATION = parsed("CITATION.cff")
RECIPE = parsed("conda/recipe.yaml")


def test_one_version():
    assert release.version() == antipgd.__version__
    assert CITATION["version"] == RECIPE["context"]["version"] == antipgd.__version__
    newest = re.search(r"^## (\S+) \((.+)\)$", text("CHANGELOG.md"), re.M)
    assert newest[1] == antipgd.__version__
    assert str(CITATION.get("date-released", "unreleased")) == newest[2]


def test_one_address():
    for address in PROJECT["urls"].values():
        assert address.startswith(REPOSITORY)
    about = RECIPE["about"]
    assert CITATION["repository-code"] == about["homepage"] == about["repository"] == REPOSITORY
    assert about["documentation"] == PROJECT["urls"]["Documentation"]


def test_addresses_of_files_lead_to_files():
    files = [one.partition("/blob/HEAD/")[2] for one in PROJECT["urls"].values() if "/blob/" in one]
    assert len(files) == 2
    assert all((ROOT / file).is_file() for file in files)


def test_the_software_is_cited_and_its_paper_referred_to():
    assert CITATION["type"] == "software"
    assert "preferred-citation" not in CITATION  # it would be cited instead of the software
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["authors"] == PROJECT["authors"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    (paper,) = CITATION["references"]
    readme = " ".join(text("README.md").split())
    names = ", ".join(author["family-names"] for author in paper["authors"])
    assert f'"{paper["title"]}" ({names}, ICML {paper["year"]})' in readme


def spaced(requirement, names):
    """`torch>=2.9` as conda writes it, by its name there."""
    name, bound = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return f"{names.get(name, name)} {bound}".strip()


def test_the_recipe_asks_for_what_the_package_asks_for():
    built = tomllib.loads(text("pyproject.toml"))["build-system"]["requires"]
    python = f"python {PROJECT['requires-python']}"
    asked = RECIPE["requirements"]
    assert asked["host"] == [python, "pip", *(spaced(one, {}) for one in built)]
    assert asked["run"] == [python, *(spaced(one, CONDA) for one in PROJECT["dependencies"])]
    extras = {one for extra in PROJECT["optional-dependencies"].values() for one in extra}
    others = {spaced(one, CONDA) for one in extras if not one.startswith("antipgd[")}
    assert asked["run_constraints"] == sorted(others)


def test_the_recipe_describes_the_package():
    about = RECIPE["about"]
    assert about["summary"] == PROJECT["description"]
    assert about["license"] == PROJECT["license"]
    assert [about["license_file"]] == PROJECT["license-files"]
    scripts = [f"{name} = {where}" for name, where in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == scripts
    assert RECIPE["package"]["name"] == PROJECT["name"]


def commands(target):
    """The commands of a target of the Makefile."""
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", text("Makefile"), re.M)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines.splitlines()]


def test_hooks_are_the_commands_of_make_lint():
    (local,) = parsed(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"  # others would bring versions of their own
    assert [hook["entry"] for hook in local["hooks"]] == commands("lint")
    assert all(not hook["pass_filenames"] for hook in local["hooks"])


def test_what_lints_is_in_the_group_and_pinned():
    called = {shlex.split(command)[0].rpartition("/")[2] for command in commands("lint")}
    named = {"lint-imports": "import-linter"}
    group = tomllib.loads(text("pyproject.toml"))["dependency-groups"]["lint"]
    tools = {re.match(r"[\w-]+", one)[0] for one in group}
    assert {named.get(one, one) for one in called} == tools
    assert all(re.search(rf"^{tool}==", text("constraints.txt"), re.M) for tool in tools)


def test_workflows_take_the_oldest_python_that_is_promised():
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert oldest == pythons()[0]
    steps = [
        step
        for path in WORKFLOWS
        for job in parsed(path)["jobs"].values()
        for step in job.get("steps", [])
    ]
    asked = [step["with"]["python-version"] for step in steps if "python-version" in str(step)]
    assert asked == [oldest]
    container = parsed(".github/workflows/ci.yml")["jobs"]["test"]["container"]
    assert container.startswith(f"python:{oldest}-")


def test_only_the_job_that_publishes_may_ask_for_a_token():
    workflow = parsed(".github/workflows/release.yml")
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert set(publish["needs"]) == set(jobs) - {"publish"}
    last = publish["steps"][-1]
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert "with" not in last  # neither a password nor another place
    assert not [step for step in publish["steps"] if "run" in step]


def test_what_is_published_has_passed():
    jobs = parsed(".github/workflows/release.yml")["jobs"]
    assert jobs["test"]["uses"] == "./.github/workflows/ci.yml"
    runs = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert runs == ['python benchmarks/release.py tag "$GITHUB_REF_NAME"', "make release-check"]
    assert [step.get("run") for step in parsed(".github/workflows/ci.yml")["jobs"]["test"]["steps"]
            ][-1] == ".ci/run"  # fmt: skip
    calls = "\n".join(commands("release-check"))
    for part in ("release.py check", "tests/test_installed.py", "examples_page.py --wheel dist/"):
        assert part in calls


def test_a_tag_that_may_be():
    assert list(release.obstacles(TAG, CHANGES, CITED)) == []


@pytest.mark.parametrize(
    ("tag", "changes", "cited", "said"),
    [
        ("v9.9", CHANGES, CITED, "the tag is v9.9"),
        (antipgd.__version__, CHANGES, CITED, "it would be v"),
        (TAG, CHANGES.replace("2026-01-31", "unreleased"), CITED, "says unreleased"),
        (TAG, CHANGES.replace(antipgd.__version__, "9.9"), CITED, "does not begin with"),
        (TAG, CHANGES, CITED.replace("31", "30"), "date-released: 2026-01-31"),
    ],
)
def test_a_tag_that_may_not_be(tag, changes, cited, said):
    (complaint,) = release.obstacles(tag, changes, cited)
    assert said in complaint


def test_links_become_absolute_and_code_does_not():
    page = "[a](docs/a.md)\n```python\nf[0](x)\n```\n[b](https://b.example/c) [d](#d) ![e](e.png)"
    assert release.absolute(page, "v1") == (
        f"[a]({REPOSITORY}/blob/v1/docs/a.md)\n```python\nf[0](x)\n```\n[b](https://b.example/c) "
        f"[d]({REPOSITORY}/blob/v1/README.md#d) ![e]({REPOSITORY}/raw/v1/e.png)"
    )


def test_every_link_of_readme_is_made_absolute():
    before, after = text("README.md"), release.absolute(text("README.md"), TAG)
    relative = re.compile(r"\]\((?!https://)")
    assert len(relative.findall(before)) > 20
    assert not relative.findall(after)
    assert after.count(f"]({REPOSITORY}/") == len(relative.findall(before))
    assert release.absolute(after, TAG) == after


def test_links_that_lead_nowhere_are_found():
    files = {"docs/a.md", "b.png"}
    good = f'<a href="{REPOSITORY}/blob/v1/docs/a.md#x">a</a><img src="{REPOSITORY}/raw/v1/b.png">'
    assert release.astray(good, files, "v1") == []
    assert release.astray('<h2 id="x"><a href="#x">x</a></h2>', files, "v1") == []
    for page, said in [
        ('<img src="b.png">', "b.png is relative"),
        ('<a href="#x">', "#x is relative"),
        (good.replace("a.md", "c.md"), "is not there"),
        (good.replace("raw/v1", "raw/v2"), "is not there"),
    ]:
        (complaint,) = release.astray(page, files, "v1")
        assert said in complaint


def test_metadata_that_say_less_are_found():
    metadata = Message()
    metadata["Name"] = "antipgd"
    said = release.misstated(metadata)
    assert not any(line.startswith("Name") for line in said)
    for name in ("Author", "Keywords", "Project-URL", "Version", "License-Expression"):
        assert any(line.startswith(f"{name}: []") for line in said)
