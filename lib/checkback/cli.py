"""Entry point: runs a command, and turns an error into one line on stderr and an exit code.

Exit codes: 0 success, 1 runtime failure, 2 wrong usage or settings, 130 Ctrl-C. The commands are in ``commands``; this
module imports the standard library only, so that a missing package is also reported in one line.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError, SettingsError, missing_module, printable, reason
from checkback.rotated import read_again

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from logging import LogRecord
    from types import FrameType

    from typer.core import TyperGroup

PROGRAM = "checkback"
#: what helps against errors of the operating system that any command may come upon
_FIXES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EROFS: "mount the disk for writing",
    errno.EACCES: "allow this user to write there",
    errno.EMFILE: "raise the process's limit of open files (ulimit -n)",
}
#: the exit code of a command that Ctrl-C has ended, as shells have it
INTERRUPTED = 130
#: seconds until a Ctrl-C in the middle of an import is heard again
_AGAIN_S = 0.02
#: objects made until the garbage collector looks for cycles among them: at 700, Python's own, it takes a tenth of a
#: command's time, nearly all of it for what imports have made, which stays
_GC_THRESHOLD = 50_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in ``argv`` (default: the process's arguments); returns the exit code, never raises."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.set_threshold(_GC_THRESHOLD)
    try:
        with ctrl_c(), hang_up():
            return _run(arguments, own_process=argv is None)
    except BrokenPipeError:
        return _closed(0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as error:
        return _exit_code(error)
    except CheckbackError as error:
        return _failed(str(error), error.exit_code, arguments)
    except Exception as error:  # noqa: BLE001 - the last line of defence
        return _failed(_unexpected(error, arguments), 1, arguments)
    finally:
        if argv is None:
            gc.freeze()  # else the interpreter looks for cycles among all that there is, twice, before it ends


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


def _unexpected(error: Exception, arguments: Sequence[str]) -> str:
    if isinstance(error, OSError) and error.errno in _FIXES:
        where = "" if error.filename is None else f"{error.filename}: "
        return f"{where}{os.strerror(error.errno).lower()}; {_FIXES[error.errno]}"
    hint = "" if "--debug" in arguments else "; run again with --debug"
    return f"unexpected {type(error).__name__}: {reason(error)}{hint}"


def _run(arguments: list[str], own_process: bool) -> int:
    try:
        from typer import TyperException

        from checkback.commands import answering, application

        app = application(arguments)
    except ModuleNotFoundError as error:
        raise missing_module(error) from error
    answering.own_process = own_process
    try:
        code: int = app(args=arguments, prog_name=PROGRAM, standalone_mode=False) or 0
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            return _closed(code)
    except TyperException as error:
        words = _command(app, arguments)
        fix = f"see `{' '.join([PROGRAM, *words])} --help`"
        if words and arguments[0] != words[0]:
            fix = f"options follow the command: {' '.join([PROGRAM, *words])} {arguments[0]} ..."
        raise SettingsError(error.format_message().rstrip("."), fix=fix) from error
    except ModuleNotFoundError as error:
        raise missing_module(error) from error
    return code


def _command(app: TyperGroup, arguments: Sequence[str]) -> list[str]:
    """The words of the command that the arguments name; also behind options, which belong after it."""
    words: list[str] = []
    commands: Mapping[str, Any] = app.commands
    for argument in arguments if arguments and (arguments[0] in commands or arguments[0][:1] == "-") else ():
        if argument in commands:
            words.append(argument)
            commands = getattr(commands[argument], "commands", {})
        elif words:
            break
    return words


def _exit_code(error: SystemExit) -> int:
    if isinstance(error.__context__, BrokenPipeError):  # of which Typer makes 1
        return _closed(0)
    return error.code if isinstance(error.code, int) else 1


def _closed(code: int) -> int:
    """The exit code of a command whose reader has closed the pipe (`checkback tx list | head`)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _failed(message: str, code: int, arguments: list[str]) -> int:
    if "--debug" in arguments:
        import traceback  # half the time until Ctrl-C is heard

        for line in traceback.format_exc().splitlines():
            print(printable(line), file=sys.stderr)
    sys.stdout.flush()
    logs = sys.modules.get("checkback.observe.logs")  # not there yet: the settings have not been read
    if logs is None or not logs.failed(printable(message), code):
        print(f"{PROGRAM}: {printable(message)}", file=sys.stderr)
    return code


@contextmanager
def ctrl_c() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also where Python alone would not bring it so far.

    - In the middle of an import it is heard after it: of libraries in C some abort the process otherwise.
    - An error afterwards is due to it: DuckDB and Arrow make their own errors of an exception that comes in a callback.
    - Once all else has ended it is ignored: Python then takes its modules apart, and would die of the signal.

    Handlers that take its place, as of queries, are in charge. Where Ctrl-C is ignored, as in the background, it stays
    so.
    """
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if not _imports(frame):
            heard.append(number)
            if "py4j" in sys.modules:  # it logs a traceback of what it passes on
                sys.modules["logging"].getLogger().addFilter(_is_no_interrupt)
            raise KeyboardInterrupt
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, hear)
    try:
        yield
    except Exception as error:
        if heard:
            raise KeyboardInterrupt from error
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def hang_up() -> Iterator[None]:
    """SIGHUP of a terminal that is closed is SIGTERM to every command. Under nohup it stays ignored.

    The shell and the kernel send one each: the second is not a second SIGTERM. To a process without a terminal, as a
    service is, it says that secrets are to be read again.
    """
    number = getattr(signal, "SIGHUP", None)  # not on Windows
    main = threading.current_thread() is threading.main_thread()
    if number is None or not main or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return

    def hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form signal wants
        signal.signal(number, signal.SIG_IGN)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(number, hear if _has_terminal() else lambda *_: read_again())
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _is_no_interrupt(record: LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap":
            return True
        frame = frame.f_back
    return False
