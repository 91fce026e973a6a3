"""What is published, built and checked: `make dist`, `make release-check`.

The files that git knows are copied into a temporary folder, where README's links become absolute:
PyPI shows it far from the files it points to. The sdist is built of that copy, and the wheel of
the sdist. Whether the wheel installs and runs is asked elsewhere: tests/test_installed.py and
benchmarks/examples_page.py.

    python benchmarks/release.py build         writes dist/
    python benchmarks/release.py check         what is there, against this clone
    python benchmarks/release.py tag v0.1.0    may this commit have that tag?
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)#\s]*)(#[^)\s]*)?\)")
WRITTEN = re.compile(r"PKG-INFO|setup\.cfg|src/antipgd\.egg-info/.*")  # by setuptools

Files = dict[str, bytes]


def version() -> str:
    """The package's, read and not imported."""
    text = (ROOT / "src" / "antipgd" / "__init__.py").read_text("utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.M)
    return found


def absolute(text: str, tag: str) -> str:
    """README with links to the repository as that tag has it; code is left as it is.

    >>> absolute("[how](docs/a.md#b) ![flat](docs/c.png)", "v1").replace(REPOSITORY, "…")
    '[how](…/blob/v1/docs/a.md#b) ![flat](…/raw/v1/docs/c.png)'
    """

    def led(link: re.Match[str]) -> str:
        image, shown, file, heading = link.groups(default="")
        kind = "raw" if image else "blob"
        return f"{image}[{shown}]({REPOSITORY}/{kind}/{tag}/{file or 'README.md'}{heading})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(led, part) for part in parts)


def tracked() -> list[str]:
    """The files that git knows and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=-1, text=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def copied(tree: Path) -> Path:
    """The clone as it is published."""
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    readme = tree / PROJECT["readme"]
    readme.write_text(absolute(readme.read_text("utf-8"), f"v{version()}"), "utf-8")
    return tree


def built(tree: Path, where: Path, *options: str) -> None:
    """Run `build`; files carry the time of the commit, so that the same commit gives the same."""
    shown = ["git", "log", "-1", "--format=%ct"]
    time = subprocess.run(shown, cwd=ROOT, check=True, stdout=-1, text=True).stdout.strip()
    done = subprocess.run(
        [sys.executable, "-m", "build", *options, "--outdir", where, tree],
        env=os.environ | {"SOURCE_DATE_EPOCH": time}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def build() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        built(copied(Path(name)), DIST)
    for path in sorted(DIST.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")


def in_wheel(path: Path) -> Files:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/")}


def in_sdist(path: Path) -> Files:
    """By name within its one folder."""
    with tarfile.open(path) as file:
        members = [one for one in file.getmembers() if one.isfile()]
        return {one.name.partition("/")[2]: file.extractfile(one).read() for one in members}  # type: ignore[union-attr]


def in_folder(path: Path) -> Files:
    files = [one for one in path.rglob("*") if one.is_file()]
    return {str(one.relative_to(path)): one.read_bytes() for one in files}


def differences(these: Files, those: Files) -> list[str]:
    """Names that only one of them has, or whose bytes differ.

    >>> differences({"a": b"1", "b": b"2"}, {"b": b"3", "c": b"4"})
    ['lacks a', 'b differs', 'has c']
    """
    said = []
    for name in sorted({*these, *those}):
        if name not in those:
            said.append(f"lacks {name}")
        elif name not in these:
            said.append(f"has {name}")
        elif these[name] != those[name]:
            said.append(f"{name} differs")
    return said


class Targets(HTMLParser):
    """What the links and images of a page lead to, and its own places."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[str] = []
        self.places: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]
        self.places |= {f"#{value}" for name, value in attrs if name == "id"}


def astray(page: str, files: set[str], tag: str) -> list[str]:
    """Links of a page in HTML that lead nowhere from PyPI: relative, or to no file of the tag.

    >>> astray('<a href="docs/a.md">a</a>', {"docs/a.md"}, "v1")
    ['docs/a.md is relative']
    """
    said, targets = [], Targets(page)
    for target in targets.found:
        own = re.fullmatch(re.escape(REPOSITORY) + r"/(?:blob|raw)/([^/]+)/([^#]+)(?:#.*)?", target)
        if target in targets.places:
            continue
        if not target.startswith("https://"):
            said.append(f"{target} is relative")
        elif own and (own[1] != tag or own[2] not in files):
            said.append(f"{target} is not there")
    return said


def misstated(metadata: Message) -> list[str]:
    """Fields that are not as pyproject.toml and the package have them."""
    wanted = {
        "Name": [PROJECT["name"]],
        "Version": [version()],
        "Summary": [PROJECT["description"]],
        "Author": [", ".join(author["name"] for author in PROJECT["authors"])],
        "Keywords": [",".join(PROJECT["keywords"])],
        "Project-URL": [f"{name}, {address}" for name, address in PROJECT["urls"].items()],
        "License-Expression": [PROJECT["license"]],
        "License-File": PROJECT["license-files"],
        "Requires-Python": [PROJECT["requires-python"]],
        "Provides-Extra": list(PROJECT["optional-dependencies"]),
        "Classifier": PROJECT["classifiers"],
        "Description-Content-Type": ["text/markdown"],
    }
    found = {name: metadata.get_all(name, []) for name in wanted}
    return [
        f"{name}: {found[name]}, not {wanted[name]}"
        for name in wanted
        if sorted(found[name]) != sorted(wanted[name])
    ]


def told_by(*command: str | Path) -> list[str]:
    """What a tool of the environment says if it refuses."""
    words = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return [(done.stdout + done.stderr).strip()] if done.returncode else []


@dataclass(frozen=True)
class Built:
    """What is in dist/, and the clone as it is published."""

    wheel: Path
    sdist: Path
    tree: Path

    def metadata(self) -> bytes:
        return in_wheel(self.wheel)[f"antipgd-{version()}.dist-info/METADATA"]

    def page(self) -> str:
        """The README of the wheel as PyPI shows it."""
        from readme_renderer.markdown import render

        text = BytesParser(policy=compat32).parsebytes(self.metadata()).get_payload(decode=True)
        rendered = render(text.decode("utf-8"))
        if rendered is None:
            raise SystemExit("README was not rendered: is readme-renderer[md] installed?")
        return rendered


def twine(these: Built) -> list[str]:
    return told_by("twine", "check", "--strict", these.wheel, these.sdist)


def wheel_contents(these: Built) -> list[str]:
    return told_by("check_wheel_contents", these.wheel)


def fields(these: Built) -> list[str]:
    said = misstated(BytesParser(policy=compat32).parsebytes(these.metadata()))
    if in_sdist(these.sdist)["PKG-INFO"] != these.metadata():
        said.append("sdist and wheel say different things")
    return said


def readme(these: Built) -> list[str]:
    return astray(these.page(), set(in_folder(these.tree)), f"v{version()}")


def whole_sdist(these: Built) -> list[str]:
    inside = in_sdist(these.sdist)
    kept = {name: text for name, text in inside.items() if not WRITTEN.fullmatch(name)}
    return differences(in_folder(these.tree), kept)


def whole_wheel(these: Built) -> list[str]:
    inside = {
        name: text for name, text in in_wheel(these.wheel).items() if name.startswith("antipgd/")
    }
    return differences(in_folder(these.tree / "src"), inside)


def same_wheel(these: Built) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        built(these.tree, Path(name), "--wheel")
        (other,) = Path(name).iterdir()
        return differences(in_wheel(other), in_wheel(these.wheel))


def hooks(these: Built) -> list[str]:
    return told_by("pre_commit", "validate-config", these.tree / ".pre-commit-config.yaml")


CHECKS: dict[str, Callable[[Built], list[str]]] = {
    "twine check --strict": twine,
    "check-wheel-contents": wheel_contents,
    "metadata are those of pyproject.toml": fields,
    "README on PyPI: every link and image is absolute and there": readme,
    "sdist: every file that git knows, and no other": whole_sdist,
    "wheel: every file under src, and no other": whole_wheel,
    "the wheel of the sdist is the wheel of the clone": same_wheel,
    "pre-commit accepts its hooks": hooks,
}


def check() -> None:
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    failed = False
    with tempfile.TemporaryDirectory() as name:
        these = Built(wheel, sdist, copied(Path(name)))
        for sentence, checked in CHECKS.items():
            said = checked(these)
            failed = failed or bool(said)
            print("FAILED" if said else "ok", sentence, flush=True)
            for line in said:
                print(f"    {line}")
    if failed:
        raise SystemExit(1)


def obstacles(tag: str, changelog: str, citation: str) -> Iterator[str]:
    """What keeps a commit with these two texts from having the tag."""
    if tag != f"v{version()}":
        yield f"the tag is {tag}, the package's version {version()}: it would be v{version()}"
    newest = re.search(r"^## (\S+) \((.+)\)$", changelog, re.M)
    if not newest or newest[1] != version():
        yield f"CHANGELOG.md does not begin with {version()}"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2]):
        yield f"CHANGELOG.md says {newest[2]}, not the day of the release"
    elif f"\ndate-released: {newest[2]}\n" not in citation:
        yield f"CITATION.cff does not say date-released: {newest[2]}"


def tag(name: str) -> None:
    texts = [(ROOT / file).read_text("utf-8") for file in ("CHANGELOG.md", "CITATION.cff")]
    said = list(obstacles(name, *texts))
    if said:
        raise SystemExit("\n".join(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = parser.add_subparsers(dest="word", required=True)
    words.add_parser("build", help="write dist/")
    words.add_parser("check", help="what is in dist/, against this clone")
    words.add_parser("tag", help="may this commit have that tag?").add_argument("name")
    options = parser.parse_args()
    if options.word == "tag":
        tag(options.name)
    else:
        {"build": build, "check": check}[options.word]()


if __name__ == "__main__":
    main()
