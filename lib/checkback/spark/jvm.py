"""Finding Java, and starting the JVM."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError, SettingsError, reason, root_cause
from checkback.spark.stderr import HeldStderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

OLDEST_JAVA = 17
_OPTIONS, _SOCKETS = "spark.driver.extraJavaOptions", "spark.python.unix.domain.socket"
_TMPDIR = "java.io.tmpdir"
#: bytes of a folder's path that leave room for a socket's name, 43, below 104 (macOS; Linux: 108)
_LONGEST = 60


def java_check(environ: Mapping[str, str] = os.environ) -> str:
    """Path of the ``java`` that Spark will run: that of JAVA_HOME, else the one on PATH.

    Raises SettingsError if there is none, or it is older than Java 17.
    """
    home = environ.get("JAVA_HOME", "")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java", path=environ.get("PATH", ""))
    fix = "install Java 17 or 21 and put it on PATH or in JAVA_HOME"
    if not java or not os.access(java, os.X_OK):
        raise SettingsError("JAVA_HOME has no bin/java" if home else "Java is not installed", home, fix)
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        match = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    except (OSError, subprocess.TimeoutExpired):
        match = None
    if match is None:
        raise SettingsError("Java does not say its version", java, fix)
    if int(match[1]) < OLDEST_JAVA:
        raise SettingsError(f"Java {match[1]} is too old", java, fix)
    return java


def quick_start(conf: Mapping[str, str], java: str) -> tuple[dict[str, str], dict[str, str]]:
    """The settings for a JVM started here, with the packages' JARs and the class-data archive, if there is one.

    And what its environment has for them. Raises CheckbackError if the JARs cannot be fetched.
    """
    from checkback.spark import jars

    in_pods = conf.get("spark.master", "").startswith("k8s:")
    if not (_is_local(conf) or in_pods):
        return dict(conf), {}  # separate executors do not have our class path
    prepare(conf)
    ours, end = jars.with_archive(with_class_path(conf), java), jars.at_end(conf)
    return {**ours, **(jars.of_executors(ours, end) if in_pods else {})}, end


def _is_local(conf: Mapping[str, str]) -> bool:
    """True if the executor is in the driver's JVM."""
    return re.match(r"local(\[|$)", conf.get("spark.master", "local")) is not None


def with_class_path(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with the class path of a JVM started here."""
    from checkback.spark import hadoop_defaults, jars, local_files

    return jars.on_class_path(local_files.on_class_path(hadoop_defaults.on_class_path(conf)))


def prepare(conf: Mapping[str, str], *others: Mapping[str, str]) -> None:
    """Fetch the packages' JARs and make our own, unless they are there. Raises CheckbackError.

    ``others``: settings of other sessions, whose packages one JVM fetches, too.
    """
    from checkback.spark import jars, local_files

    if missing := [one for one in (conf, *others) if jars.PACKAGES in jars.on_class_path(one)]:
        fetch_packages(missing)
    if os.pathsep == ":" and not local_files.is_made():
        with _other_jvm(with_class_path(conf), conf) as jvm:
            local_files.make(jvm)


def names_locale(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Additions to the JVM's environment that make it decode file names as Python does (``python``: its encoding).

    In the C locale (cron, services, containers) Java cannot open files with non-ASCII names and has no option for it;
    Python uses UTF-8 there.
    """
    locale = next(filter(None, map(environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    if python.lower() != "utf-8" or re.search(r"utf-?8", locale, re.IGNORECASE):
        return {}
    return {"LC_ALL": "C.UTF-8"}


def nameless_user() -> int | None:
    """This process's user id if the machine has no name for it, as in most pods; else None.

    Hadoop's client needs a name (javax.security.auth's UnixLoginModule), unless it is told who has logged in.
    """
    try:
        import pwd

        pwd.getpwuid(os.getuid())
    except KeyError:
        return os.getuid()
    except ImportError:  # not on Windows
        pass
    return None


def _with_places(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings with Python's places for temporary files and, without a user's name, home; the user's own count."""
    places = {} if _has_own_tmpdir(conf) else {_TMPDIR: tempfile.gettempdir()}
    if nameless_user() is not None:
        places["user.home"] = os.environ.get("HOME") or tempfile.gettempdir()
    ours = [shlex.quote(f"-D{name}={place}") for name, place in places.items()]
    return {**conf, _OPTIONS: " ".join([*ours, conf.get(_OPTIONS, "")]).strip()}


def sockets(conf: Mapping[str, str]) -> dict[str, str]:
    """The setting without Unix domain sockets where their paths would be too long for the system."""
    folder = conf.get(f"{_SOCKETS}.dir", tempfile.gettempdir())
    return {f"{_SOCKETS}.enabled": "false"} if len(os.fsencode(folder)) > _LONGEST else {}


def _has_own_tmpdir(conf: Mapping[str, str]) -> bool:
    given = (conf.get(_OPTIONS), conf.get("spark.driver.defaultJavaOptions"), os.environ.get("JAVA_TOOL_OPTIONS"))
    return any(_TMPDIR in options for options in given if options)


def native_code_check(conf: Mapping[str, str]) -> None:
    """Raise SettingsError if Spark's native libraries cannot be loaded from the folder for temporary files.

    Snappy, Zstandard and RocksDB are unpacked there.
    """
    folder = tempfile.gettempdir()
    if _has_own_tmpdir(conf) or not hasattr(os, "statvfs"):
        return
    if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        what = f"{folder} is mounted noexec, and Spark loads native libraries from there"
        raise SettingsError(what, "TMPDIR", "name a folder on another mount in TMPDIR, or mount it with exec")


def _address(conf: Mapping[str, str]) -> dict[str, str]:
    """The environment that names the address of a local session if the machine's name has none."""
    if _is_local(conf) and not os.environ.get("SPARK_LOCAL_IP"):
        try:
            socket.getaddrinfo(socket.gethostname(), None)
        except OSError:
            return {"SPARK_LOCAL_IP": "127.0.0.1"}
    return {}


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Temporarily extend this process's environment, for child processes started inside."""
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def worker_python(master: str) -> dict[str, str]:
    """The environment of the JVM that makes Python workers run this Python, on this machine by `worker-python`.

    That starts each process half a second of CPU time sooner: two are started with the query.
    """
    from pyspark import __file__ as pyspark

    script = Path(__file__).with_name("worker-python")
    installed = Path(pyspark).parent.parent == Path(sysconfig.get_path("purelib"))
    if master.startswith("local") and installed and os.access(script, os.X_OK):
        return {"PYSPARK_PYTHON": str(script), "CHECKBACK_PYTHON": sys.executable}
    return {"PYSPARK_PYTHON": sys.executable}


def fetch_packages(confs: Sequence[Mapping[str, str]]) -> None:
    """Fetch the JARs of the packages of each of these settings. Raises CheckbackError.

    Not in the JVM that then needs them: with packages Spark wants to know the user's name before we can say it.
    """
    from checkback.spark import jars

    others = {key: value for key, value in confs[0].items() if key not in (jars.PACKAGES, "spark.jars")}
    packages = dict.fromkeys(",".join(conf[jars.PACKAGES] for conf in confs).split(","))
    with _other_jvm(others, {**confs[0], jars.PACKAGES: ",".join(packages)}) as jvm:
        for conf in confs:
            jars.fetch(conf, jvm)


@contextmanager
def _other_jvm(own: Mapping[str, str], conf: Mapping[str, str]) -> Iterator[Any]:
    """The Py4J view of a JVM with settings of its ``own``, which ends with the context.

    What fails there raises CheckbackError, for the sake of ``conf``.
    """
    with HeldStderr() as held:
        gateway = _launched(own, {}, held)
        try:
            yield gateway.jvm
        except Exception as error:
            raise _failed(conf, str(error).splitlines(), error) from error
        finally:
            gateway.shutdown()
            gateway.proc.stdin.close()  # the JVM then exits
            gateway.proc.wait()
            held.join()


def start_jvm(conf: Mapping[str, str], environment: Mapping[str, str], held: HeldStderr) -> None:
    """Start the JVM of this process, with more in its environment, without Ivy's and Spark's output.

    Raises CheckbackError if the JVM does not start, or JARs cannot be fetched.
    """
    from pyspark import SparkContext

    # Spark's workers would run PYSPARK_PYTHON, or the first python3 on PATH, which may lack the packages. Here they run
    # this Python, whatever the machine has set for other programs.
    if _is_local(conf) or "PYSPARK_PYTHON" not in os.environ:
        os.environ |= worker_python(conf.get("spark.master", "local"))
    gateway = _launched(conf, environment, held)
    uid = nameless_user()
    if uid is not None:
        users = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(os.environ.get("HADOOP_USER_NAME", str(uid))))
    SparkContext._ensure_initialized(gateway=gateway)


def _launched(conf: Mapping[str, str], environment: Mapping[str, str], held: HeldStderr) -> Any:
    """The Py4J gateway of a new JVM. Raises CheckbackError."""
    from pyspark import SparkConf, java_gateway

    from checkback.spark.launch_settings import ARGUMENTS, launch_settings

    launch: Callable[..., Any] = java_gateway.launch_gateway
    native_code_check(conf)
    try:
        # Its stdout, too: ours is for a command's output.
        told: dict[str, Any] = {"stdout": held.fileno(), "stderr": held.fileno()}
        if sys.version_info >= (3, 11):  # a signal to this process's group (`timeout`, `kill %1`) is for it alone
            told["process_group"] = 0
        locale = names_locale(os.environ, sys.getfilesystemencoding())
        with (
            launch_settings(_with_places(conf), os.environ) as (shown, arguments),
            _environment({**environment, **locale, **_address(conf), ARGUMENTS: arguments}),
        ):
            return launch(SparkConf().setAll(list(shown.items())), told)
    except Exception as error:
        raise _failed(conf, held.lines(), error) from error


def _failed(conf: Mapping[str, str], lines: Sequence[str], error: Exception) -> CheckbackError:
    """The error of a JVM that did not start, or did not find JARs; ``lines``: what it printed."""
    from checkback.spark import jars

    packages = conf.get(jars.PACKAGES, "")
    if any("unresolved dependency" in line or "download failed" in line for line in lines):
        whose, own = ("Delta Lake's", "")
        if jars.KAFKA_SOURCE in packages:
            whose, own = "Delta Lake's and Kafka's", ", or Kafka's own JARs in spark.jars"
        return CheckbackError(
            f"{whose} JARs could not be fetched",
            packages,
            f"connect to Maven Central once, or name a mirror in spark.jars.repositories{own}",
        )
    why = root_cause(lines) or reason(error)
    fix = "give this user id an entry in /etc/passwd" if "Invalid UID" in why else "check Java and the spark settings"
    return CheckbackError(f"Spark did not start: {why}", fix=fix)


if __name__ == "__main__":
    # For the Makefile, before anything is installed: `python -m checkback.spark.jvm`.
    try:
        java_check()
    except CheckbackError as problem:
        sys.exit(f"checkback: {problem}")
