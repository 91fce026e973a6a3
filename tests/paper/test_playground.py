"""The playground as text; how it behaves in a browser is in tests/page."""

import base64
import hashlib
import re
from itertools import product
from pathlib import Path

import pytest

from antipgd.cli import main
from antipgd.paper import playground
from antipgd.paper.methods import METHODS

FOLDER = Path(playground.__file__).parent
NAMES = playground.MODULES + playground.VIEWS
GROUNDS = ("ground", "card", "low", "high")


def text(name):
    return (FOLDER / name).read_text("utf-8")


def test_every_file_is_used():
    scripts = {path.stem for path in FOLDER.glob("*.js")}
    assert scripts == set(NAMES)
    assert len(NAMES) == len(scripts)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_stands_after_those_it_imports(name):
    imports = re.findall(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', text(f"{name}.js"), re.M)
    assert len(imports) == len(re.findall(r"^import\b", text(f"{name}.js"), re.M))
    for names, source in imports:
        assert NAMES.index(source) < NAMES.index(name)
        for one in names.replace(" ", "").split(","):
            exported = rf"^export (const|class|function) {one}\b"
            assert re.search(exported, text(f"{source}.js"), re.M), one
    assert text(f"{name}.js").startswith("// ")


def test_files_are_as_short_and_narrow_as_elsewhere():
    for path in [*FOLDER.glob("*.js"), *FOLDER.glob("*.css"), *FOLDER.glob("*.html")]:
        lines = path.read_text("utf-8").splitlines()
        assert len(lines) < 300, path.name
        assert max(map(len, lines)) <= 100, path.name


def test_nothing_of_the_module_syntax_is_left():
    script = playground.script()
    assert not re.search(r"^\s*(import|export)\b", script, re.M)
    assert script.count("_js = (() => {") == len(NAMES)


def test_it_asks_nobody_and_evaluates_nothing():
    page = playground.page()
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|@import|url\(|src=", page)
    assert not re.search(r"\beval\(|new Function|\bon\w+=\"|innerHTML|document\.write", page)
    assert "</script" not in playground.script().lower()


def test_the_policy_names_the_script_that_is_there():
    page = playground.page()
    (inside,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\">" in page
    assert playground.script_source() == f"'sha256-{digest}'"
    assert "unsafe-eval" not in page


def test_the_fragment_is_small_and_brings_one_id():
    fragment = playground.fragment()
    assert len(fragment.encode()) < 120_000
    outside = re.sub(r"<(template|script).*?</\1>", "", fragment, flags=re.S)
    assert re.findall(r'id="([^"]*)"', outside) == ["playground"]


def test_the_scale_is_that_of_all_lengths_in_rem():
    usual, small = playground.fragment(), playground.fragment(scale=0.8)
    lengths = [[float(n) for n in re.findall(r"(\d[\d.]*)rem\b", one)] for one in (usual, small)]
    assert len(lengths[0]) > 50
    assert lengths[1] == pytest.approx([0.8 * one for one in lengths[0]], rel=1e-4)
    assert re.sub(r"\d[\d.]*rem\b", "", small) == re.sub(r"\d[\d.]*rem\b", "", usual)
    assert not re.search(r"@container[^{]*rem", usual)  # of the page's, whatever the scale


def test_every_id_that_the_script_asks_for_is_there():
    there = set(re.findall(r'\bid="([^"]+)"', text("playground.html")))
    asked = set(re.findall(r'\bat\("([\w-]+)"\)', text("view.js") + text("controls.js")))
    assert len(asked) > 10
    assert asked <= there
    labelled = re.findall(r'<label[^>]*\bfor="([^"]+)"', text("playground.html"))
    assert set(labelled) <= there


def colours(theme):
    block = {"light": r":host \{(.*?)\n\}", "dark": r':host\(\[data-theme="dark"\]\) \{(.*?)\n\}'}
    inside = re.search(block[theme], text("playground.css"), re.S)[1]
    return dict(re.findall(r"--pg-([\w-]+): (#\w{6})", inside))


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def contrast(one, other):
    dark, bright = sorted(map(luminance, (one, other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_and_text_stand_out(theme):
    found = colours(theme)
    for line, ground in product(("gd", "pgd", "anti", "taps", "hold", "antithetic"), GROUNDS):
        assert contrast(found[line], found[ground]) >= 3, (line, ground)
    for word, ground in product(("text", "quiet", "link", "fails"), ("ground", "card", "soft")):
        assert contrast(found[word], found[ground]) >= 4.5, (word, ground)
    assert contrast(found["text"], found["high"]) >= 4.5  # labels in the landscape
    assert contrast(found["edge"], found["ground"]) >= 3  # of fields


def test_both_themes_name_the_same_colours():
    assert colours("light").keys() == colours("dark").keys()
    assert not colours("light").items() & colours("dark").items()


def test_methods_have_the_colours_of_the_figures():
    light = colours("light")
    for id, method in {"gd": "gd", "pgd": "pgd", "anti": "anti", "taps": "noise"}.items():
        assert light[id] == METHODS[method].colour


def test_the_command_writes_the_page(tmp_path, capsys):
    out = tmp_path / "new" / "play.html"
    assert main(["playground", "--out", str(out)]) == 0
    assert out.read_text("utf-8") == playground.page()
    assert capsys.readouterr().out == f"{out}\n"
    assert main(["playground", "--out", str(tmp_path)]) == 1
    assert f"cannot write {tmp_path}" in capsys.readouterr().err
