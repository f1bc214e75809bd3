"""docs/settings.md: every setting, from the settings model and the comments of conf/base.yml."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError, create_model

from checkback.messages.limits import INT_MAX
from checkback.settings import Producer, Settings
from checkback.settings.model import Push, TopicBody
from checkback.settings.values import format_size
from docs.markdown import prose, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BASE = Path(__file__).parents[2] / "conf" / "base.yml"
_SECTION = re.compile(r"(\w+):.*")
_KEY = re.compile(r"  (\w+): *(.*?)(?:\s+#\s*(.*))?")
_SUBSECTION = re.compile(r"  (\w+):\s+#.*")
_GROUP = re.compile(r"#   (\w+):")
#: sections by the group of their example
_EXAMPLES = {"orders": "producers", "credits": "push", "payments": "topics"}
_FIXED = "fixed once a checkpoint exists"
_DURATIONS = {"0s": " ≥ 0s", "1ms": ""}
_TRIED = ("0s", "1ms", "1s", "1m", "1h", "1d")

_HEAD = """# Settings

<!-- Made by `make docs` from lib/checkback/settings/model.py and conf/base.yml: change those. -->

Layers, each overriding the one before: the defaults, `conf/base.yml` in the working folder, `--config`, the
environment, `--set`. Maps merge, lists replace. `checkback config show` shows each value and its layer.

```sh
checkback config show --config conf/base.yml --set transaction.timeout=2s
CHECKBACK__TRANSACTION__TIMEOUT=2s checkback config show
CHECKBACK__PRODUCERS__ORDERS__ENDPOINTS='["http://127.0.0.1:8901/check"]' checkback config show
```

Values are YAML, without its tags, dates, octal and base-60 numbers: `010` and `2:28` are text. A duration is a whole
number with a unit: `500ms`, `6s`, `1m`, `72h`, `2d`. So is a size: `512B`, `32KiB`, `16MiB`, `1GiB`, `1TiB`. `null`
means not set. An unknown key or an invalid value ends the command with one line and exit code 2.

*Fixed* settings belong to the checkpoint: `reconcile` and `land` refuse another value. A
[rebuild](runbook.md#rebuild) makes a checkpoint with the new one, except of `kafka.queue_base`.
"""
_PRODUCERS = """Each key of `producers` is a producer group (letters, digits, `_`, `-`) with these settings:

```yaml
producers:
  orders: {endpoints: ["https://orders.example.com/check"], secret: "env:ORDERS_SECRET", token: "env:ORDERS_TOKEN"}
```

A `secret` or `token` is accepted from the environment (`env:NAME` names the variable) or a file (`file:PATH`), and may
be two values apart by a space or line while it is [rotated](runbook.md#rotation). Both are masked wherever
settings are printed. `gateway`, `reconcile`, `land` and `config show` need the variables of all groups; other commands
need none. To create them:

```sh
export ORDERS_SECRET="whsec_$(openssl rand -base64 32)" ORDERS_TOKEN="$(openssl rand -hex 32)"
```"""
_PUSH = """Each key of `push` is a consumer group of [`checkback push`](webhooks.md) with these settings; `topic` and
`url` have no default. A `secret` or `token` is accepted from the environment or a file, as above; other commands than
`push` and `config show` do not need it.

```yaml
push:
  credits: {topic: payments, url: "https://credits.example.com/events", secret: "env:CREDITS_SECRET"}
```"""
_TOPICS = """Each key of `topics` is a topic with these settings: [queries](queries.md) get a column `value` beside
its bodies. A `password` or `token` is accepted from the environment only, as above; only queries of such a topic, and
`config show`, need it.

```yaml
topics:
  payments: {body: json, schema: {type: object, properties: {amount: {type: integer}}}}
```"""
_SPARK = """Spark's configuration properties, e.g. `spark.executor.memory: 4g`. `config show` masks values that may be
secrets."""


def page() -> str:
    """The page."""
    said = read_lines(_BASE.read_text(encoding="utf-8"))
    parts = [_HEAD]
    for section, field in Settings.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            parts += [f"## {section}\n", prose(model.__doc__ or ""), "", _table(section, model, said), ""]
            for key, below in subsections(model):
                named = f"{section}.{key}"
                parts += [f"## {named}\n", prose(below.__doc__ or ""), "", _table(named, below, said), ""]
    values = {key: json.dumps(value) for key, value in Producer().model_dump(mode="json").items()}
    groups = {f"producers.{key}": (value, said[f"producers.{key}"][1]) for key, value in values.items()}
    parts += ["## producers\n", _PRODUCERS, "", _table("producers", Producer, groups), ""]
    example = Push.model_validate({"topic": "payments", "url": "https://credits.example.com/events"})
    values = {key: json.dumps(value) for key, value in example.model_dump(mode="json").items()}
    groups = {f"push.{key}": (value, said[f"push.{key}"][1]) for key, value in values.items()}
    parts += ["## push\n", _PUSH, "", _table("push", Push, groups), ""]
    values = {key: json.dumps(value) for key, value in TopicBody().model_dump(mode="json", by_alias=True).items()}
    groups = {f"topics.{key}": (value.strip('"'), said[f"topics.{key}"][1]) for key, value in values.items()}
    parts += ["## topics\n", _TOPICS, "", _table("topics", TopicBody, groups), ""]
    return "\n".join([*parts, "## spark\n", _SPARK, ""])


def names(model: type[BaseModel]) -> Mapping[str, str]:
    """The keys of a section as written in files (aliases) -> the model's field names."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def read_lines(base: str) -> dict[str, tuple[str, str]]:
    """``section.key`` -> its value in conf/base.yml, as text, and its comment.

    A key without a comment belongs to the one above. The examples of producers, push and topics are comments, with
    keys one level deeper.
    A key without a value is a section of a section.
    """
    found: dict[str, tuple[str, str]] = {}
    section, above = "", ""
    for line in base.splitlines():
        if (group := _GROUP.fullmatch(line)) is not None:
            section = _EXAMPLES[group[1]]
        elif (match := _SECTION.fullmatch(line)) is not None:
            section = match[1]
        elif (match := _SUBSECTION.fullmatch(line)) is not None:
            section = f"{section}.{match[1]}"
        elif (match := _KEY.fullmatch(line.removeprefix("  "))) is not None and "." in section:
            found[f"{section}.{match[1]}"] = (match[2], match[3] or "")
        elif (
            match := _KEY.fullmatch(line.removeprefix("#   ") if section in _EXAMPLES.values() else line)
        ) is not None:
            key, value, comment = match.groups()
            found[f"{section}.{key}"] = (value, (comment or f"goes with {above}").strip())
            above = key
    return found


def subsections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections within a section, by key."""
    for key, name in names(model).items():
        below = model.model_fields[name].annotation
        if isinstance(below, type) and issubclass(below, BaseModel):
            yield key, below


def _table(section: str, model: type[BaseModel], said: Mapping[str, tuple[str, str]]) -> str:
    return table(("default", "kind", ""), _rows(section, model, said))


def _rows(section: str, model: type[BaseModel], said: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    kinds = model.model_json_schema(by_alias=True)["properties"]
    below = dict(subsections(model))
    for key, name in names(model).items():
        if key in below:
            continue
        value, text = said[f"{section}.{key}"]
        text = text.replace(_FIXED, "*fixed*").replace("<", "&lt;")
        yield f"`{key}: {value}`", _kind(kinds[key], model, name), text


def _kind(schema: Mapping[str, Any], model: type[BaseModel], name: str) -> str:
    if "anyOf" in schema:
        return next(_kind(one, model, name) for one in schema["anyOf"] if one.get("type") != "null") + " or null"
    if "enum" in schema:
        return ", ".join(schema["enum"][:-1]) + " or " + str(schema["enum"][-1])
    if schema["type"] == "array":
        return f"list: {_kind(schema['items'], model, '')}"
    if schema.get("format") == "duration":
        return "duration" + _shortest(model, name)
    if schema.get("format") == "size":
        about = model.model_fields[name].metadata
        least, most = (next(getattr(one, key) for one in about if hasattr(one, key)) for key in ("ge", "le"))
        return f"size, {format_size(least)} to {format_size(most)}"
    return _plain_kind(schema)


def _plain_kind(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if most == INT_MAX:
        most = None
    if least is not None and most is not None:
        return f"{_KINDS[schema['type']]}, {least} to {most}"
    return _KINDS[schema["type"]] + ("" if least is None else f" ≥ {least}")


_KINDS = {
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "string": "text",
    "object": "map",
}


def _shortest(model: type[BaseModel], name: str) -> str:
    """The text for the shortest duration that the field accepts."""
    field = model.model_fields[name]
    kind: Any = field.annotation
    alone = create_model("Alone", value=(kind, field))
    for text in _TRIED:
        try:
            alone.model_validate({"value": text})
        except ValidationError:
            continue
        return _DURATIONS.get(text, f" ≥ {text}")
    raise AssertionError(f"{name} takes none of {_TRIED}")
