from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tinyllm.cli.option_groups import with_option_groups


@dataclass(frozen=True)
class Paint:
    colour: Annotated[str, typer.Option("--colour", help="Of it.")] = "red"
    coats: int = 1


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()

    @made.command()
    @with_option_groups
    def paint(paint: Paint, wall: Annotated[str, typer.Argument()], dry: bool = False) -> None:
        """Paint a wall."""
        typer.echo(f"{paint} {wall} {dry}")

    return made


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["north"], "Paint(colour='red', coats=1) north False"),
        (["--coats", "2", "south", "--dry", "--colour", "blue"], "Paint(colour='blue', coats=2) south True"),
    ],
)
def test_a_group_is_made_of_its_options_and_their_defaults(
    app: typer.Typer, arguments: list[str], said: str
) -> None:
    assert CliRunner().invoke(app, arguments).output.strip() == said


def test_the_help_shows_the_options_of_a_group_and_of_the_command(app: typer.Typer) -> None:
    text = CliRunner().invoke(app, ["--help"]).output
    assert all(word in text for word in ("--colour", "Of it.", "--coats", "--dry", "Paint a wall."))
