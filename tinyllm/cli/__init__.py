"""The `tinyllm` command: parses, calls, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from tinyllm.cli import trace
from tinyllm.cli.bench import bench
from tinyllm.cli.compare import compare
from tinyllm.cli.conform import conform
from tinyllm.cli.cost import cost
from tinyllm.cli.doctor import doctor
from tinyllm.cli.generate import generate
from tinyllm.cli.get_model import get_model
from tinyllm.cli.replay import replay
from tinyllm.cli.report import report
from tinyllm.cli.resim import resim
from tinyllm.cli.usage import UsageError, usage_message
from tinyllm.errors import TinyLLMError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Study LLM serving: replay traces through real scheduling policies, simulated or on a real model.",
)
app.add_typer(trace.app, name="trace")
for command in (replay, resim, report, cost, get_model, generate, compare, bench, doctor, conform):
    app.command()(command)


def main() -> None:
    """Run the command line; an error that a user can mend is one line on standard error, no traceback."""
    try:
        status = app(standalone_mode=False)
    except TinyLLMError as error:
        _fail(str(error), error.exit_code)
    except UsageError as error:
        _fail(usage_message(error), 2)
    except BrokenPipeError:
        # Whoever read our output has left (`tinyllm … | head`); Python would complain when it flushes.
        sys.stdout = None
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> NoReturn:
    if message:
        # A name out of a file or an option may hold line ends.
        print(f"tinyllm: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(status)
