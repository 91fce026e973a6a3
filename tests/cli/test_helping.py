"""Help shows every command once, its examples are commands, and shells can complete them."""

import builtins
import re
import shlex
import subprocess
import sys

import pytest

from antipgd.cli import _joined, _parser, helping, main

COMMANDS = sorted(_parser()[1])


def lines_of(text):
    return [line.rstrip() for line in text.splitlines()]


def test_every_command_is_in_one_group_and_has_examples():
    listed = [name for names in helping.GROUPS.values() for name in names]
    assert sorted(listed) == COMMANDS
    assert sorted(helping.EXAMPLES) == sorted(["", *COMMANDS])


@pytest.mark.parametrize("line", [one for lines in helping.EXAMPLES.values() for one in lines])
def test_examples_are_commands(line):
    words = shlex.split(line.partition(" > ")[0])
    assert words.pop(0) == "antipgd"
    options = _parser()[0].parse_args(_joined(words))
    assert callable(options.command)


def test_alone_it_shows_help(capsys):
    assert main([]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = lines_of(shown.out)
    for title in helping.GROUPS:
        assert title[0].upper() + title[1:] + ":" in lines
    for name in COMMANDS:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1
    assert max(map(len, lines)) <= helping.WIDTH


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name, rich, capsys, monkeypatch):
    if not rich:
        usual = builtins.__import__

        def without(module, *others):
            if module == "rich_argparse":
                raise ImportError(module)
            return usual(module, *others)

        monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert helping.EXAMPLES[name][0].split()[1] in text.partition("Examples:")[2]
    assert "%%" not in text
    if name == "sweep":
        flat = re.sub(r"\s+", " ", text)
        assert "processes[=N], ray[=HOST:PORT] or slurm[=local|debug]" in flat  # no markup


@pytest.mark.parametrize("shell", helping.SHELLS)
def test_completion(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*COMMANDS, *(["--sigma", "--scale"] if shell != "tcsh" else [])):  # as shtab can
        assert word in script


def test_bash_takes_the_script(tmp_path):
    script = subprocess.run(
        [sys.executable, "-m", "antipgd", "completion", "bash"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    asked = (
        f"{script}\nCOMP_WORDS=(antipgd sw); COMP_CWORD=1; _shtab_antipgd; echo ${{COMPREPLY[@]}}"
    )
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sweep"]


def test_an_unknown_shell(capsys):
    assert main(["completion", "fish"]) == 2
    assert "invalid choice: 'fish'" in capsys.readouterr().err


def test_a_misspelt_command_is_named(capsys):
    assert main(["swep", "widening_valley"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("antipgd: unknown command 'swep'; did you mean 'sweep'? accepted: ")
    assert said.count("\n") == 1
