"""Ctrl-C from the start of a command to its end, and a closed terminal, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

_START = "import os, signal, sys\nfrom checkback.cli import main\n"
_END = "sys.exit(main(['tx', 'list', '--set', 'storage.root=.']))\n"


def _ended(code: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _START + code], check=False, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_in_the_middle_of_an_import_it_is_130_after_it() -> None:
    """Without a traceback, and the library's import is not broken off."""
    code = (
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'pyarrow': os.kill(os.getpid(), signal.SIGINT); print('goes on')\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    assert _ended(code + _END) == (130, "goes on\n", "")


def test_an_error_that_a_library_makes_of_it_is_keyboard_interrupt() -> None:
    code = (
        "import duckdb\n"
        "from checkback.cli import ctrl_c\n"
        "database = duckdb.connect()\n"
        "pressed = lambda number: os.kill(os.getpid(), signal.SIGINT) or number\n"
        "database.create_function('pressed', pressed, ['BIGINT'], 'BIGINT')\n"
        "try:\n"
        "    with ctrl_c(): database.execute('CREATE TABLE one AS SELECT pressed(1)')\n"
        "except KeyboardInterrupt: print('heard')\n"
    )
    assert _ended(code) == (0, "heard\n", "")


def test_no_traceback_is_logged_of_a_call_to_spark_that_it_ends() -> None:
    code = (
        "import logging, py4j.java_gateway\n"
        "from checkback.cli import ctrl_c\n"
        "logging.basicConfig()\n"
        "class Socket:\n"
        "    def send_command(self, command): os.kill(os.getpid(), signal.SIGINT)\n"
        "client = py4j.java_gateway.GatewayClient()\n"
        "client.deque.append(Socket())\n"
        "try:\n"
        "    with ctrl_c(): client.send_command('c')\n"
        "except KeyboardInterrupt: print('heard')\n"
        "sys.stdout.flush()\n"
        "os._exit(0)\n"
    )
    assert _ended(code) == (0, "heard\n", "")


def test_when_all_else_has_ended_the_exit_code_stays() -> None:
    """The last object goes when Python has given its handlers back."""
    code = (
        "class Last:\n"
        "    def __del__(self, kill=os.kill, own=os.getpid(), number=signal.SIGINT): kill(own, number)\n"
        "last = Last()\n"
        "sys.exit(main(['config', 'show', '--set', 'transaction.timeuot=2s']))\n"
    )
    number, said, error = _ended(code)
    assert (number, said) == (2, "")
    assert error.startswith("checkback: ")


def test_in_the_background_it_stays_ignored() -> None:
    code = (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "assert main(['--version']) == 0\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n"
    )
    assert _ended(code)[1].splitlines()[1:] == ["True"]


@pytest.mark.usefixtures("without_nohup")
def test_closed_terminal_is_one_sigterm() -> None:
    """The shell and the kernel send SIGHUP; under nohup neither counts."""
    code = (
        "import fcntl, pty, termios\n"
        "os.setsid()\n"
        "fcntl.ioctl(pty.openpty()[1], termios.TIOCSCTTY, 0)\n"
        "from checkback.cli import hang_up\n"
        "heard = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: heard.append('SIGTERM'))\n"
        "with hang_up():\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with hang_up(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "print(heard, signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\n"
    )
    assert _ended(code) == (0, "['SIGTERM'] True\n", "")
