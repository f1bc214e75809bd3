"""Helpers for notebooks: the settings of the tables to inspect, and rows as a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pyspark.sql import functions as F

from checkback.errors import SettingsError
from checkback.settings import BASE_FILE
from checkback.settings.loading import SECRETS_OF_OTHERS, load
from checkback.storage.timestamps import time_of_us

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    from checkback.settings import Settings

#: folder of the example that `make run` creates, relative to the project's
_EXAMPLE = Path("data/bank")


def notebook_settings(config: Path | str | None = None, overrides: Sequence[str] = ()) -> Settings:
    """The settings as commands read them; if nothing names the tables, those of the example that `make run` leaves.

    ``config`` is the file of ``--config``, ``overrides`` are ``KEY=VALUE`` as for ``--set``; CHECKBACK__STORAGE__ROOT
    and other environment variables apply, too. The project is the working folder, or its nearest parent with a
    conf/base.yml: a relative storage.root is resolved there. Raises SettingsError, also if the example does not exist
    yet.
    """
    project = _project()
    base = project / BASE_FILE
    file = Path(config) if config is not None else base if base.exists() else None
    loaded = load(file, overrides, unneeded=SECRETS_OF_OTHERS)
    named = {loaded.origin(f"storage.{key}") for key in ("root", "catalog")}
    if config is None and named <= {"default", str(base), str(BASE_FILE)}:
        loaded = load(file, [*_example(project / _EXAMPLE), *overrides], unneeded=SECRETS_OF_OTHERS)
    root = loaded.settings.storage.root
    if ":" in root or Path(root).is_absolute():  # a URI, or a path independent of the working folder
        return loaded.settings
    overrides = [*overrides, f"storage.root={json.dumps(str(project / root))}"]
    return load(file, overrides, unneeded=SECRETS_OF_OTHERS).settings


@dataclass(frozen=True)
class Rows:
    """Rows that notebooks show as a table, without truncating text."""

    frame: pd.DataFrame

    def _repr_html_(self) -> str:
        with self._whole():
            return str(self.frame.to_html(index=False, na_rep="")) if len(self.frame) else "<p>Nothing.</p>"

    def __repr__(self) -> str:
        with self._whole():
            return str(self.frame.to_string(index=False, na_rep="")) if len(self.frame) else "Nothing."

    def first(self, name: str) -> str:
        """Value of a column in the first row; "nothing" without rows."""
        return str(self.frame[name].iloc[0]) if len(self.frame) else "nothing"

    def _whole(self) -> AbstractContextManager[None]:
        import pandas as pd

        return pd.option_context("display.max_colwidth", None)


def table(rows: DataFrame, most: int = 20) -> Rows:
    """The first rows; times are UTC in whole seconds, numbers have one decimal.

    Times outside pandas' range become null.
    """
    # pandas stores times in nanoseconds, which cannot represent times that another writer may have set.
    times = [name for name, kind in rows.dtypes if kind == "timestamp"]
    known = {name: F.when(F.year(name).between(1678, 2261), F.col(name)) for name in times}
    found = rows.limit(most).withColumns(known).toPandas()
    for name, kind in rows.dtypes:
        if kind == "timestamp":
            found[name] = found[name].dt.floor("s")
        elif kind == "double":
            found[name] = found[name].round(1)
    return Rows(found)


def busiest(over_time: DataFrame, every: timedelta) -> datetime | None:
    """The end of the interval with the most pending, from rows of `pending_over_time`; None if there are none."""
    total = F.sum("pending").alias("pending")
    row = over_time.groupBy(F.unix_micros("minute").alias("at")).agg(total).orderBy(F.desc("pending"), "at").first()
    if row is None:
        return None
    return time_of_us(row["at"]) + every


def _project() -> Path:
    """The nearest folder with conf/base.yml, from the working folder upwards; otherwise the working folder."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / BASE_FILE).exists()), here)


def _example(folder: Path) -> Iterator[str]:
    """The example's settings as overrides: its file without the secret, which only the example's run had."""
    try:
        sections: dict[str, dict[str, Any]] = yaml.safe_load((folder / "checkback.yml").read_text("utf-8"))
    except OSError as error:
        fix = "`make run` makes the example's in less than three minutes; others: set CHECKBACK__STORAGE__ROOT"
        raise SettingsError("there are no tables yet", str(_EXAMPLE / "data"), fix) from error
    for section in ("transaction", "reconcile"):
        for key, value in sections[section].items():
            yield f"{section}.{key}={json.dumps(value)}"
    for group, producer in sections["producers"].items():
        yield f"producers.{group}.endpoints={json.dumps(producer['endpoints'])}"
    yield f"storage.root={json.dumps(str(folder / 'data'))}"
