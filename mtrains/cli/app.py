"""The `mtrains` command: its subcommands, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, TextIO

import typer

from mtrains.cli.demo import demo
from mtrains.cli.export import export
from mtrains.cli.inspect import inspect
from mtrains.cli.plan import plan
from mtrains.cli.profile import profile
from mtrains.cli.train import train
from mtrains.cli.usage import UsageError
from mtrains.cli.verify import verify
from mtrains.errors import MtrainsError

__all__ = ["EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_USAGE", "app", "main"]

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

app = typer.Typer(
    name="mtrains",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mtrains {metadata.version('mtrains')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Train embedding tables larger than memory, with exactly the bits of in-memory training."""


app.command()(train)
app.command()(demo)
app.command()(profile)
app.command()(inspect)
app.command()(verify)
app.command()(export)
app.command()(plan)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 ok, 1 failed, 2 usage, 130 interrupted.

    An expected error is one line on stderr; anything else is a bug and keeps its traceback.
    """
    warnings.showwarning = _show_warning
    if not (sys.argv[1:] if arguments is None else arguments):
        app(args=["--help"], prog_name="mtrains", standalone_mode=False)
        return EXIT_USAGE
    try:
        code = app(args=arguments, prog_name="mtrains", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except UsageError as error:
        return _fail(error, EXIT_USAGE)
    except (MtrainsError, OSError, ValueError) as error:
        return _fail(_words(error), EXIT_FAILED)
    except Exception as error:
        # Usage errors: their class lies in click or in typer, by typer's version, with one interface.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        return _fail(error.format_message(), int(error.exit_code))
    if code == EXIT_INTERRUPTED:
        print("mtrains: interrupted", file=sys.stderr)
    return int(code or 0)


def _words(error: Exception) -> object:
    """Return what to say of an error: of the system's, the file and what is wrong with it."""
    if isinstance(error, OSError) and not isinstance(error, MtrainsError) and error.filename and error.strerror:
        return f"cannot use {os.fspath(error.filename)}: {error.strerror}"
    return error


def _fail(error: object, code: int) -> int:
    print(f"mtrains: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"mtrains: warning: {' '.join(str(message).split())}", file=file or sys.stderr)
