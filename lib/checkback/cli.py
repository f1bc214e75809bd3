"""The way in: runs a command, turns what goes wrong into one line on stderr and an exit code.

Exit codes: 0 success, 1 runtime failure, 2 wrong usage or settings, 130 Ctrl-C. The commands are in ``commands``; this
module imports the standard library only, so that a missing package is also reported in one line.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from checkback.ctrl_c import ctrl_c
from checkback.errors import CheckbackError, SettingsError, printable, reason

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "checkback"
#: the exit code of a command that Ctrl-C has ended, as shells have it
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: the process's arguments); returns the exit code, never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with ctrl_c():
            return _run(arguments, own_process=argv is None)
    except BrokenPipeError:
        # The reader closed the pipe (`checkback pending | head`).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as error:
        # Typer exits like this when the output is closed.
        return error.code if isinstance(error.code, int) else 1
    except CheckbackError as error:
        return _failed(str(error), error.exit_code, arguments)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        hint = "" if "--debug" in arguments else "; run again with --debug"
        return _failed(f"unexpected {type(error).__name__}: {reason(error)}{hint}", 1, arguments)


def run(command: str) -> None:
    """Run a command as a job: ``jobs/COMMAND.py`` under spark-submit takes the command's options."""
    code = main([*command.split(), *sys.argv[1:]])
    # Some schedulers count any SystemExit as a failure.
    if code:
        sys.exit(code)


def job() -> None:
    """Run the command in the process's arguments, as a Python wheel task; raises SystemExit on failure."""
    code = main(sys.argv[1:])
    if code:
        sys.exit(code)


def _run(arguments: list[str], own_process: bool) -> int:
    try:
        from typer import TyperException

        from checkback.commands import answering, app, names
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    answering.own_process = own_process
    try:
        code: int = app(args=arguments, prog_name=PROGRAM, standalone_mode=False) or 0
        sys.stdout.flush()
    except TyperException as error:
        command = f"{PROGRAM} {arguments[0]}" if arguments and arguments[0] in names() else PROGRAM
        raise SettingsError(error.format_message().rstrip("."), fix=f"see `{command} --help`") from error
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return code


def _missing(error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] == __package__:
        return error
    return SettingsError(f"the Python module {error.name} is missing", fix="install Checkback with its dependencies")


def _failed(message: str, code: int, arguments: list[str]) -> int:
    if "--debug" in arguments:
        import traceback  # half the time until Ctrl-C is heard

        for line in traceback.format_exc().splitlines():
            print(printable(line), file=sys.stderr)
    sys.stdout.flush()
    print(f"{PROGRAM}: {printable(message)}", file=sys.stderr)
    return code
