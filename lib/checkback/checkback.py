"""Queries on the tables for scripts and notebooks (docs/inspect.md).

    from checkback import Checkback

    with Checkback("data") as cb:
        cb.pending(group="orders", limit=50).to_pandas()
        cb.lineage("order-4711")
        len(cb.topic("payments"))

Every question returns a pyarrow Table. With a Spark session, `Checkback.frames` has the same questions as DataFrames.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from checkback.bodies.body_format import format_of, with_values
from checkback.errors import SettingsError
from checkback.query.answers import Answers, AsOf
from checkback.query.engines.question import Question
from checkback.settings import BASE_FILE, Settings
from checkback.settings.loading import SECRETS_OF_OTHERS, load
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from checkback.bodies.body_format import BodyFormat
    from checkback.query.frames import Frames
    from checkback.query.versions.view import View
    from checkback.what_if.replayed_tables import WhatIf

_log = logging.getLogger(__name__)
#: topics that an error names
_NAMED = 10
#: folder of the example that `make run` creates, relative to the project's
_EXAMPLE = Path("data/bank")
_NO_CATALOG = "storage.catalog=null", "storage.schema=null"


def load_settings(
    root: str | os.PathLike[str] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> Settings:
    """The settings as the commands read them: conf/base.yml, ``config``, the environment, ``overrides``.

    ``root``: storage.root, a folder or the URL of an object store, also if the settings name a catalog; ``options``:
    storage.options; ``config``: the file of ``--config``; ``overrides``: ``KEY=VALUE`` as for ``--set``. conf/base.yml
    is that of the working folder, or of its nearest parent that has one; a relative storage.root or schema_file of the
    settings is resolved there, ``root`` in the working folder. If nothing names the tables and ./data has none, they
    are those that `make run` leaves, if there are any.
    Secrets of producers, Kafka and the dashboard are not needed. Raises SettingsError.
    """
    given = list(overrides)
    if root is not None:  # rather than a catalog of the file or the environment
        place = _absolute(os.fspath(root), Path.cwd())
        given = [*_NO_CATALOG, *given, f"storage.root={json.dumps(place)}"]
    if options is not None:
        given.append(f"storage.options={json.dumps(dict(options))}")
    here = Path.cwd()
    project = next((folder for folder in (here, *here.parents) if (folder / BASE_FILE).exists()), here)
    base = project / BASE_FILE
    file = Path(config) if config is not None else base if base.exists() else None
    found = load(file, given, unneeded=SECRETS_OF_OTHERS)
    named = {found.origin(f"storage.{key}") for key in ("root", "catalog")}
    if config is None and named <= {"default", str(base), str(BASE_FILE)} and not (project / "data/half").exists():
        given = [*_example(project / _EXAMPLE), *given]
        found = load(file, given, unneeded=SECRETS_OF_OTHERS)
    files = {"storage.root": found.settings.storage.root}
    topics = found.settings.topics.items()
    files |= {f"topics.{name}.schema_file": body.schema_file for name, body in topics if body.schema_file is not None}
    moved = {key: _absolute(file, project) for key, file in files.items() if file != _absolute(file, project)}
    if not moved:
        return found.settings
    given += [f"{key}={json.dumps(file)}" for key, file in moved.items()]
    return load(file, given, unneeded=SECRETS_OF_OTHERS).settings


def _example(folder: Path) -> Iterator[str]:
    """The example's settings as overrides: its file without the secret, which only its run had; none without it."""
    try:
        sections: dict[str, dict[str, Any]] = yaml.safe_load((folder / "checkback.yml").read_text("utf-8"))
    except OSError:
        return
    for section in ("transaction", "reconcile"):
        for key, value in sections[section].items():
            yield f"{section}.{key}={json.dumps(value)}"
    for group, producer in sections["producers"].items():
        yield f"producers.{group}.endpoints={json.dumps(producer['endpoints'])}"
    yield f"storage.root={json.dumps(str(folder / 'data'))}"


def _absolute(root: str, folder: Path) -> str:
    """A URL, or a path that does not depend on the working folder."""
    return root if ":" in root or Path(root).is_absolute() else str(folder / root)


class Checkback(Answers):
    """The tables at a place, for questions. A context manager; several threads may use it.

    ``root``: a folder, or the URL of an object store. Without it the settings apply: ``config``, ``overrides``
    and the environment (`load_settings`), or ``settings``. ``spark``: a session that answers instead of DuckDB, needed
    for tables in a catalog, which otherwise raise SettingsError (`open_session` makes one).

    A question returns a pyarrow Table, whose timestamps are UTC. ``as_of`` asks as of a time: a datetime with a time
    zone, or a text such as "15:00", "2026-11-20T15:00", "10m ago". Raises SettingsError if there are no tables, or
    ``as_of`` is no time, or too long ago; StorageError if the tables cannot be read.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        config: str | os.PathLike[str] | None = None,
        overrides: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        if settings is None:
            settings = load_settings(root, config=config, overrides=overrides, options=options)
        elif root is not None or config is not None or overrides or options is not None:
            raise TypeError("settings= has it all: give no root, config, overrides or options beside it")
        super().__init__(settings, spark, _log.warning)
        #: for what takes settings: checkback.consumer's `read`, `read_stream`, `create_views`, PushConsumer
        self.settings = settings

    def __repr__(self) -> str:
        storage = self.settings.storage
        place = storage.root if storage.catalog is None else f"{storage.catalog}.{storage.schema_}"
        return f"Checkback({place!r})"

    def __enter__(self) -> Checkback:
        return self

    def close(self) -> None:
        """Nothing is open between two questions; for symmetry, and ``contextlib.closing``."""

    @property
    def frames(self) -> Frames:
        """The same questions, answered by Spark as DataFrames. Raises SettingsError without a session."""
        from checkback.query.frames import Frames

        return Frames(self.settings, self._session())

    def stuck(self, as_of: AsOf = None) -> pa.Table:
        """The producer groups that are stuck, since when and why; columns as `groups`, without stuck."""
        return self.groups(as_of, stuck=True)

    def topic(self, name: str, as_of: AsOf = None) -> Topic:
        """The messages of a topic. Raises SettingsError if there is no such topic."""
        names = [each.removeprefix(TOPIC_PREFIX) for each in self._view(lambda view: view.topics(), as_of)]
        if name not in names:
            near = ", ".join(get_close_matches(name, names, _NAMED, 0))
            fix = f"there are {near}" if near else "a topic is there once its first message is published"
            raise SettingsError("there is no such topic", name, fix)
        return Topic(self, name, as_of)

    def consumers(self, group: str | None = None) -> pa.Table:
        """How far the consumer groups are, a row for each queue; columns as `queue_lag`. Not for catalogs."""
        from checkback.consumer.queue_lag import queue_lag

        return queue_lag(self.settings, round(time.time() * 1000), group)

    def what_if(self, changes: Mapping[str, Any], since: AsOf = None) -> WhatIf:
        """What other settings would have brought, such as {"transaction.timeout": "30s"} (docs/inspect.md).

        ``since``: only half messages that landed then or later.
        """
        from checkback.query.versions.as_of import parse_as_of
        from checkback.what_if.replayed_tables import parse_changes, replay

        return replay(self.settings, parse_changes(changes), parse_as_of(since, name="since"), spark=self._spark)

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise SettingsError("there is no Spark session", "spark", "give one: Checkback(..., spark=spark)")
        return self._spark


@dataclass(frozen=True, repr=False)
class Topic:
    """A topic's messages, as of a time; columns: ``topics/<topic>`` (docs/tables.md).

    With ``topics.NAME.body`` in the settings also value, of the body's type, and value_error, why the body has none
    (docs/queries.md). DuckDB, polars and others read it as it is, by the Arrow stream that it makes.

    Raises SettingsError if the schema is not valid, or a package for it is missing; StorageError if a schema cannot
    be had from the registry.
    """

    _of: Checkback
    name: str
    as_of: AsOf = None

    def to_arrow(self) -> pa.Table:
        """The messages, by half_queue_id and half_queue_offset."""
        rows = self._ask("SELECT * FROM {topic}", "half_queue_id, half_queue_offset")
        body = self._body()
        return rows if body is None else with_values(rows, body)

    def to_pandas(self) -> pd.DataFrame:
        """`to_arrow` in pandas; times are UTC."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_spark(self) -> DataFrame:
        """The messages as a DataFrame; nothing is collected. Raises SettingsError without a session."""
        from checkback.query.versions.view import View

        frame: DataFrame = View.of(self._of._session(), self._of.settings, self.as_of).read(TOPIC_PREFIX + self.name)
        body = self._body()
        if body is None:
            return frame
        from checkback.query.typed_frames import with_value_columns

        return with_value_columns(frame, body)

    def __len__(self) -> int:
        """How many messages there are."""
        return int(self._ask("SELECT count(*) AS messages FROM {topic}", "messages")["messages"][0].as_py())

    def __bool__(self) -> bool:
        return True  # also without messages

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"{self._of!r}.topic({self.name!r})"

    def _body(self) -> BodyFormat | None:
        return format_of(self._of.settings, self.name)

    def _ask(self, sql: str, order: str) -> pa.Table:
        def read(view: View) -> pa.Table:
            topic = {"topic": view.read(TOPIC_PREFIX + self.name)}
            return self._of._rows(view, Question(sql, order), topic)

        return self._of._view(read, self.as_of)
