"""How settings reach a JVM that is started: what may be a secret in files, as every user can read command lines.

The files are only their owner's, and are removed once the JVM has read them.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from checkback.settings.spark_values import shown_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
#: Spark puts these on the JVM's command line whichever way it gets them.
_OPTIONS = ("spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions")
#: An option as Spark's launcher splits them (`CommandBuilderUtils.parseOptionString`), and its quoted parts.
_OPTION = re.compile(r"""(?s)(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+""")
_QUOTED = re.compile(r"""(?s)'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""")


@contextmanager
def launch_settings(conf: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[tuple[dict[str, str], str]]:
    """What may stand on the command line, and PYSPARK_SUBMIT_ARGS that names a file of the rest.

    The rest are the values that `config show` masks. A ``--properties-file`` that ``environ`` names there takes the
    file's place: the rest is then only the session's, which gets all settings again.
    """
    with tempfile.TemporaryDirectory(prefix="checkback-start-") as folder:
        shown = {key: value for key, value in conf.items() if shown_value(key, value) == value}
        rest = {key: value for key, value in conf.items() if key not in shown}
        for key in _OPTIONS:
            kept, hidden = split_options(rest.get(key, ""))
            if hidden:
                file = Path(folder, key)
                file.write_text("\n".join(map(_argument, hidden)), encoding="utf-8", errors="surrogateescape")
                rest[key] = " ".join([*kept, shlex.quote(f"@{file}")])
        properties = Path(folder, "properties")
        properties.write_text("".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in rest.items()))
        given = environ.get(ARGUMENTS, "pyspark-shell")
        yield shown, f"--load-spark-defaults --properties-file {shlex.quote(str(properties))} {given}"


def split_options(options: str) -> tuple[list[str], list[str]]:
    """JVM options that hold no secret, as they are: of the JVM itself (-X...), and files (@...). The others, unquoted.

    Options with an open quote are left together; Spark refuses them before the JVM starts.
    """
    if _OPTION.sub("", options).strip():
        return [options], []
    kept, hidden = [], []
    for found in _OPTION.findall(options):
        option = _QUOTED.sub(lambda part: part[1] or re.sub(r"(?s)\\(.)", r"\1", part[2] or "") or part[3] or "", found)
        if option.startswith(("-X", "@")):
            kept.append(found)
        else:
            hidden.append(option)
    return kept, hidden


def _argument(option: str) -> str:
    """An option in a file of Java's arguments."""
    for plain, escape in (("\\", r"\\"), ('"', r"\""), ("\n", r"\n"), ("\r", r"\r"), ("\t", r"\t"), ("\f", r"\f")):
        option = option.replace(plain, escape)
    return f'"{option}"'


def _escaped(text: str) -> str:
    """A key or value in a file of Java's properties: each UTF-16 unit by its number."""
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return re.sub("(.{4})", r"\\u\1", units)
