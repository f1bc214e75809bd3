"""Hadoop's default settings in a JAR that is read fast.

Spark's encoder of state reloads them (`AvroOptions`: a new Hadoop Configuration) for each state variable of each
partition of a query that starts: it parses 460 KiB of XML, most of it descriptions, and looks for three files that
nobody has in each of some 270 JARs. That was a fifth of the CPU time of a JVM that starts query after query. Spark also
copies the settings, 1,100, for each scan and each commit of a Delta table that it reads, and sends them to the tasks.

The JAR made here has the same settings without their descriptions. Unless Hadoop may be configured here, the three
files are in it, empty, and YARN's settings, 654, are not: no cluster is asked in local mode.
"""

from __future__ import annotations

import hashlib
import logging
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from checkback.spark.jars import CLASS_PATH, kept, of_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

#: resources of `Configuration`, in the order in which it loads them
_YARN = "yarn-default.xml"
_DEFAULTS = ("core-default.xml", "mapred-default.xml", _YARN)
_SITES = ("core-site.xml", "mapred-site.xml", "yarn-site.xml")
#: what makes Spark put a folder of such files on the class path, after the JARs
_FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")

_log = logging.getLogger(__name__)


def on_class_path(conf: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The settings with the JAR first on the class path; unchanged if it cannot be made."""
    given = conf.get(CLASS_PATH, "")
    configured = given or any(environ.get(name) for name in _FOLDERS) or _is_configured(_conf_folder(environ))
    jar = _jar(() if configured else (*_SITES, _YARN))
    if jar is None:
        return dict(conf)
    return {**conf, CLASS_PATH: os.pathsep.join([str(jar), given] if given else [str(jar)])}


def _conf_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ["SPARK_CONF_DIR"]) if environ.get("SPARK_CONF_DIR") else of_spark().parent / "conf"


def _is_configured(folder: Path) -> bool:
    return any((folder / name).exists() for name in _SITES)


def _jar(empty: tuple[str, ...]) -> Path | None:
    """The JAR for Spark's Hadoop, with these files empty; made if it is not there; None if it cannot be."""
    try:
        (source,) = of_spark().glob("hadoop-client-api-*.jar")
        about = source.stat()
        key = repr((str(source), about.st_size, int(about.st_mtime), empty))
        file = kept(f"hadoop-defaults-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jar")
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            new = file.with_name(f"{file.name}.{os.getpid()}")
            with zipfile.ZipFile(source) as hadoop, zipfile.ZipFile(new, "w") as made:
                for name in dict.fromkeys((*_DEFAULTS, *empty)):
                    made.writestr(name, "<configuration/>" if name in empty else undescribed(hadoop.read(name)))
            new.replace(file)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, ElementTree.ParseError) as error:
        _log.debug("Hadoop's default settings are read as they are: %s", error)
        return None
    return file


def undescribed(xml: bytes) -> bytes:
    """A file of Hadoop's settings without what only people read. Raises ParseError."""
    root = ElementTree.fromstring(xml)  # noqa: S314 - a file of Spark's own JARs
    for setting in root:
        setting.tail = setting.text = None
        for part in list(setting):
            part.tail = None
            if part.tag not in ("name", "value", "final"):
                setting.remove(part)
    root.text = None
    return ElementTree.tostring(root)
