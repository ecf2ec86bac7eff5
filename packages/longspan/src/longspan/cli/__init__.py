"""The command line: `longspan COMMAND …`, one module per command.

To add a command, write `cli/<name>.py` with one function of the same name (`def summarize(...)`), annotated for typer
(`Annotated[Path, typer.Option(...)]`). Its docstring is the help text (markdown; the list shows the first sentence),
and the constant `PANEL` names the panel of the help page. Then add one line to `COMMANDS`, or, in another package, an
entry point in the group `longspan.commands`. At its top, such a module imports only the standard library, typer and
`longspan.errors` (typer evaluates annotations in the module, so their names must be defined there); torch and
everything that imports it are imported inside the function, so that `--help` stays fast. A function `epilog` in the
module, without arguments, returns the end of the command's help.

Write output with `say` of `longspan.cli.terminal`, never with `print` or `typer.echo`: documents and file names may
contain terminal control sequences. Raise `InputError` for a mistake of the user: it is printed as `error: <sentence>`
on stderr, and the exit code is 2. Return normally for success; raise `typer.Exit(code)` for anything else. Tests call
`main([...])`, which returns the code.
"""

import errno
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from longspan.cli.terminal import ReportedExit, complain, say, silence, usable_streams
from longspan.elsewhere import check_installed
from longspan.errors import InputError, is_out_of_memory, memory_sentence
from longspan.imports import Table
from longspan.progress import bars_on_terminals_only
from longspan.version import __version__

COMMANDS: Table[Callable[..., None]] = Table(
    "commands",
    {
        "generate": "longspan.cli.generate:generate",
        "train": "longspan.cli.train:train",
        "recipes": "longspan.cli.recipes:recipes",
        "data": "longspan.cli.data:data",
        "tokenizer": "longspan.cli.tokenizer:tokenizer",
        "evaluate": "longspan.cli.evaluate:evaluate",
        "lengthen": "longspan.cli.lengthen:lengthen",
        "plan": "longspan.cli.plan:plan",
        "compare": "longspan.cli.compare:compare",
        "draw": "longspan.cli.draw:draw",
        "mechanisms": "longspan.cli.mechanisms:mechanisms",
    },
)
"""Command → its function."""
PANELS = ("Documents", "Models", "Attention")
"""Panels of the help page, in order; the module of a command names its panel as `PANEL`."""

COMES_ALONG = ("numpy", "rich", "safetensors", "sentencex", "tokenizers", "torch", "transformers", "typer")
"""Libraries that are installed with this package, so no extra installs them."""
COMPLETING = "_LONGSPAN_COMPLETE"
"""The environment variable by which a shell requests completions instead of running the command."""

HELP = """A long attention span for Transformers: summarise, train and compare on documents of any length.

Start with `longspan summarize FILE`. Every command explains itself: `longspan COMMAND --help`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments` (default: the process's own) and return the exit code.

    0 is success, 2 a mistake in the input (one sentence on stderr), 130 an interruption from the keyboard.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with usable_streams(), bars_on_terminals_only():
            return _run(arguments)
    except InputError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted", code=130)
    except BrokenPipeError:  # the reader of the output (`| head`) has closed it
        silence()
        return 1
    except Exception as error:  # an error of Longspan, unless the system explains it
        reason = _of_the_system(error, arguments)
        if reason is None:
            raise
        return _fail(reason)


def _of_the_system(error: Exception, arguments: Sequence[str]) -> str | None:
    """Returns a sentence on an exception that the system caused, such as a lack of memory; `None` for other
    exceptions."""
    if is_out_of_memory(error):
        return "; ".join([memory_sentence(error), *_what_fits(arguments)])
    if isinstance(error, ModuleNotFoundError) and (missing := str(error.name).partition(".")[0]) in COMES_ALONG:
        return f"{missing} is missing, which comes with longspan; pip install {missing}"
    if not isinstance(error, OSError):
        return None
    if error.filename is not None:
        return f"{error.filename}: {(error.strerror or 'cannot be used').lower()}"
    try:  # an error without a file name is one of standard output, if that still cannot be flushed
        sys.stdout.flush()
        if error.errno not in {errno.ENOSPC, errno.EIO, errno.EBADF}:
            return None
    except (OSError, ValueError):
        pass
    silence()
    return f"standard output cannot be written ({(error.strerror or str(error)).lower()}); send it elsewhere"


def _what_fits(arguments: Sequence[str]) -> list[str]:
    """Returns the plan's advice for the first model on the command line, if the remaining memory suffices to read
    it."""
    folder = next((argument for argument in arguments if Path(argument, "config.json").is_file()), None)
    if folder is None:
        return []
    try:
        from longspan.planning.plan import what_fits
        from longspan.planning.source import open_planned

        return [advice] if (advice := what_fits(open_planned(folder), 1, train=False)) else []
    except InputError:  # an error in the folder is not the cause of the failure
        return []
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return []


def _run(arguments: list[str]) -> int:
    try:
        import typer
    except ImportError as error:
        raise InputError("the command line needs typer, which comes with longspan; pip install typer") from error
    command = typer.main.get_command(_app(arguments))
    # The base class of usage errors: typer once took it from click and now has its own, so derive it from a public
    # child.
    usage_error: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
    try:
        result = command.main(arguments, prog_name="longspan", standalone_mode=False)
    except usage_error as error:
        return _fail(f"{_usage(error)} (see `{' '.join(filter(None, ['longspan', _command(arguments), '--help']))}`)")
    except typer.Abort:
        return _fail("interrupted", code=130)
    except (KeyError, ValueError):
        if COMPLETING not in os.environ:
            raise
        return _fail(f"{COMPLETING} is set, but COMP_WORDS and COMP_CWORD do not contain what to complete; unset it")
    except SystemExit as done:  # completion ends this way: its scripts, and the words that a shell requests
        return done.code if isinstance(done.code, int) else 0
    # Newer typer converts an interruption to its exit code itself.
    if result == 130 and not isinstance(result, ReportedExit):
        return _fail("interrupted", code=130)
    return result if isinstance(result, int) else 0


def _app(arguments: list[str]) -> Any:
    """Returns the typer application, with the requested command, or all of them if help must list them."""
    import typer

    from longspan.cli.options import expanded

    # Only `--install-completion` writes to the user's home; markdown leaves `[brackets]` unchanged.
    app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)

    @app.callback(help=HELP, invoke_without_command=True)
    def longspan(
        context: typer.Context,
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            say(f"longspan {__version__}")
        elif context.invoked_subcommand is None:
            say(context.get_help())

    if named := _command(arguments):
        functions = {named: COMMANDS[named]}
    else:
        functions = dict(sorted(COMMANDS.items(), key=lambda item: _place(_panel(item[1]))))
    for name, function in functions.items():
        # The list of commands does not need their options.
        typed = expanded(function) if named or COMPLETING in os.environ else _named_only(function)
        end = getattr(sys.modules[function.__module__], "epilog", None) if named and "--help" in arguments else None
        app.command(name, rich_help_panel=_panel(function), epilog=end() if end else None)(typed)
    return app


def _named_only(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a command without arguments, with the name and help of `function`."""

    def listed() -> None: ...

    listed.__name__, listed.__doc__ = function.__name__, function.__doc__
    return listed


def _panel(function: Callable[..., None]) -> str:
    """Returns the panel that lists a command: `PANEL` of its module, by default that of documents."""
    return getattr(sys.modules[function.__module__], "PANEL", PANELS[0])


def _place(panel: str) -> int:
    """Returns the position of a panel on the help page: panels of other packages follow."""
    return PANELS.index(panel) if panel in PANELS else len(PANELS)


def _usage(error: Any) -> str:
    """Returns the message of a usage error, with the wrong value if the parser names only the option."""
    message = error.format_message()
    invalid = getattr(error.__cause__, "errors", None)  # pydantic's, which typer uses to parse numbers
    if invalid is None or not getattr(error, "param", None):
        return message
    first = invalid(include_url=False)[0]
    setting, limits = f"{error.param.opts[0]}={first['input']!r}", first.get("ctx", {})
    if "ge" in limits or "le" in limits:
        limit = limits.get("ge", limits.get("le"))
        if isinstance(limit, float) and not math.isfinite(float(first["input"])):
            return f"{setting} is not a finite number; give one"
        return f"{setting} must be {'at least' if 'ge' in limits else 'at most'} {limit}"
    if "error" in limits:  # of a choice: "'a' is not one of 'b', 'c'."
        return f"{error.param.opts[0]}={limits['error']}".rstrip(".")
    kinds = {"int": "a whole number", "float": "a number", "string": "a text that can be read"}
    kind = next((words for name, words in kinds.items() if first["type"].startswith(name)), None)
    return message if kind is None else f"{setting} is not {kind}; give one"


def _command(arguments: list[str]) -> str:
    """Returns the first command in the arguments, or "" if it is unknown or missing.

    Raises:
        MissingLibraryError: the command belongs to a package that is not installed.
    """
    first = next((argument for argument in arguments if not argument.startswith("-")), "")
    if first in COMMANDS:
        return first
    check_installed(f"longspan {first}", first)
    return ""


def _fail(message: str, code: int = 2) -> int:
    complain(f"error: {message}")
    return code
