"""Every command line in the documentation is one that lamina understands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lamina.cli import app
from lamina.pipeline.described import meaning
from lamina.spec import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "evidence" not in path.parts)]
COMMAND: Any = typer.main.get_command(app)


def commands(text: str) -> list[str]:
    """The command lines of a page: lines of its blocks, and spans of its sentences, that begin with lamina."""
    blocks = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    spans = re.findall(r"`(lamina [^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    lines = [part.strip() for line in blocks.splitlines() for part in re.split(r"&&|;|\||>", line.partition(" #")[0])]
    found = [line for line in lines if line.startswith("lamina ")] + [" ".join(span.split()) for span in spans]
    return [line for line in found if not line.endswith("--help")]


def parse(line: str) -> dict[str, Any]:
    """The arguments and options of a command line, as the shell and lamina read it; none where it is only named.

    Raises:
        typer's usage errors, for a command or an option that there is not.
    """
    command = COMMAND
    words = shlex.split(line)[1:]
    context = None
    while words and hasattr(command, "resolve_command"):
        context = command.make_context("lamina", words, parent=context)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    return command.make_context("lamina", words, parent=context).params if words else {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_of_the_documentation_exist(page: Path) -> None:
    faults = {}
    for line in commands(page.read_text(encoding="utf-8")):
        try:
            parse(line)
        except Exception as error:
            faults[line] = f"{type(error).__name__}: {error}"
    assert faults == {}


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words."""
    for name, each in command.commands.items():
        words = (*path, name)
        yield from leaves(each, words) if hasattr(each, "commands") else [(" ".join(words), each)]


LEAVES = dict(leaves(COMMAND))


@pytest.mark.parametrize("name", LEAVES)
def test_the_help_of_every_command_has_an_example_that_it_understands(name: str) -> None:
    examples = [line.strip() for line in LEAVES[name].help.partition("Example")[2].splitlines()]
    examples = [line.replace("\\[", "[") for line in examples if line.startswith("lamina ")]
    assert examples
    for line in examples:
        assert line.startswith(f"lamina {name}")
        given = parse(line)
        named = given.get("spec") or given.get("network") or []
        for network in [named] if isinstance(named, str) else named:
            meaning(network)  # raises an error for an unknown one


def test_help_shows_brackets_as_they_are_typed() -> None:
    helped = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert "pip install 'lamina[server]'" in " ".join(helped.stdout.split())
    texts = [text for each in LEAVES.values() for text in (each.help, *(str(it.help or "") for it in each.params))]
    eaten = re.compile(r"(?<!\\)\[(?!/?bold\])[a-z/@#]")  # as rich finds its tags
    assert [text for text in texts if eaten.search(text)] == []


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_has_help(name: str) -> None:
    hidden = [each.name for each in LEAVES[name].params if not (each.help or getattr(each, "hidden", False))]
    assert hidden == []


HOME_MADE = {
    *("told", "asked", "asks", "said", "spoken", "dear", "picture", "remark", "remarks", "birthplace", "way", "ways"),
    *("living", "halves", "tape", "tapes", "speed-up", "speed-ups"),
}


@pytest.mark.parametrize("name", LEAVES)
def test_help_is_in_the_terms_of_the_field(name: str) -> None:
    texts = [LEAVES[name].help, *(str(getattr(each, "help", "")) for each in LEAVES[name].params)]
    found = set(re.findall(r"[a-z]+(?:-[a-z]+)*", " ".join(texts).lower()))
    assert found & HOME_MADE == set()


def test_implementations_are_listed_with_their_summaries() -> None:
    (option,) = (each for each in LEAVES["bench"].params if each.name == "impl")
    for info in METHODS.values():
        assert info.name in option.help and info.summary in option.help


@pytest.mark.parametrize("line", ["lamina bnech lenet5", "lamina bench lenet5 --bacth-size 4", "lamina runs diff a"])
def test_a_command_that_is_none_is_found(line: str) -> None:
    (found,) = commands(f"```\n{line}  # so\n```")
    assert found == line
    with pytest.raises(Exception, match=r"No such (command|option)|Missing parameter"):
        parse(line)
