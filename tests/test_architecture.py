"""The page about the house says what the contracts and the tree say."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
SOURCE = ROOT / "src" / "antipgd"


def layers(name):
    """The rooms of a contract, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (found,) = [one for one in contracts["contracts"] if one["name"] == name]
    return [room.strip(" ()") for layer in found["layers"] for room in layer.split("|")]


def table(title):
    """The first column of the table with this title."""
    rows = PAGE[PAGE.index(f"| {title} |") :].split("\n\n")[0].splitlines()[2:]
    return [re.match(r"\| `?([^`|]+)`? \|", row)[1].strip() for row in rows]


@pytest.mark.parametrize(
    ("title", "contract"),
    [
        ("room of `antipgd`", "rooms of the package"),
        ("room of `antipgd.paper`", "rooms of the paper"),
    ],
)
def test_rooms_stand_in_the_order_of_the_contract(title, contract):
    wanted = [room for room in layers(contract) if not room.startswith("__")]
    assert table(title) == wanted


def test_every_room_is_there():
    for title, folder in (("room of `antipgd`", ""), ("room of `antipgd.paper`", "paper")):
        for room in table(title):
            place = SOURCE / folder / room
            assert place.is_dir() or place.with_suffix(".py").is_file(), room


def test_every_path_on_the_page_is_there():
    paths = re.findall(r"`([\w./]+/[\w./]+)`", PAGE)
    assert len(paths) > 25
    for path in paths:
        there = [base / path for base in (SOURCE, SOURCE / "paper", ROOT) if (base / path).exists()]
        assert there, path
