"""Types and validation of settings' values: durations, sizes, counts, names, endpoints, secrets.

A value is a YAML or JSON value, or text. Errors never show a possible secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, NoReturn, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, SecretStr, StrictInt
from pydantic_core import PydanticCustomError

from checkback.messages.cloud_events import MEDIA_TYPE
from checkback.messages.durations import LONGEST, format_duration, parse_duration
from checkback.messages.limits import INT_MAX
from checkback.messages.names import is_consumer_group, is_group, is_topic
from checkback.rotated import FILE_REFERENCE, is_token

T = TypeVar("T")

ENV_REFERENCE = "env:"
#: Keys of a producer group, of one in `push`, and of a topic, that are only allowed in the environment.
SECRETS = ("secret", "token", "password")
#: Options (of Kafka, of an object store) whose values are only allowed in the environment.
SECRET_OPTION = re.compile(r"(?i)password|secret|token|jaas|[._]key$|access_key")

_AZURE = ("abfs", "abfss", "wasb", "wasbs")
#: of object stores; dbfs:/x, file:/x and hdfs:/x are places
_ONE_SLASH = re.compile(r"(?i)(?:s3a?|gs|abfss?):/(?!/)")
# or several, as the name nodes of HDFS; a bucket may have an underscore
_HOST = re.compile(r"(?:[^:@\[\]\\]*|\[[0-9A-Fa-f:.%]*\])(?::[0-9]*)?(?:,[^:@\[\]\\]+(?::[0-9]*)?)*")
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})(B|KiB|MiB|GiB|TiB)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
#: Longer than any write takes from file to commit, and any reader keeps a file open.
SHORTEST_RETENTION = timedelta(hours=1)


def refuse(what: str, fix: str) -> NoReturn:
    """Refuse a value; ``what`` and ``fix`` must not contain it if it may be a secret."""
    raise PydanticCustomError("setting", "{what}; {fix}", {"what": what, "fix": fix})


def _parsed(value: object, parse: Callable[[str], T], kind: str, examples: str) -> T:
    """A whole number with a unit, as `parse` reads it, which raises ValueError."""
    fix = f"write a whole number and its unit: {examples}"
    if not isinstance(value, str):
        refuse(f"is not a {kind}" if value is None else f"{value!r} is a {kind} without a unit", fix)
    try:
        return parse(value)
    except ValueError as error:
        refuse(str(error), fix)


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        if value % timedelta(milliseconds=1) or value > LONGEST:
            refuse("is not a whole number of milliseconds up to 100 years", "round it")
        return value
    return _parsed(value, parse_duration, "duration", "500ms, 6s, 1m, 72h or 2d")


def parse_size(text: str) -> int:
    """Bytes of text such as ``512B``, ``32KiB``, ``16MiB``, ``1GiB`` or ``1TiB``. Raises ValueError."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return int(match[1]) * _BYTES[match[2]]


def format_size(size: int) -> str:
    """The shortest text that ``parse_size`` parses to as many bytes."""
    unit = next(unit for unit, bytes_ in reversed(_BYTES.items()) if unit == "B" or (size and not size % bytes_))
    return f"{size // _BYTES[unit]}{unit}"


def _size(value: object) -> int:
    return _parsed(value, parse_size, "size", "512B, 32KiB, 16MiB, 1GiB or 1TiB")


def _not_negative(duration: timedelta) -> timedelta:
    if duration < timedelta(0):
        refuse("must not be negative", "write 0s or more")
    return duration


def _positive(duration: timedelta) -> timedelta:
    if duration <= timedelta(0):
        refuse("must be longer than 0s", "write 1ms or more")
    return duration


def _retention(duration: timedelta) -> timedelta:
    if duration < SHORTEST_RETENTION:
        refuse("is shorter than 1h: files would go that are being written or read", "write 1h or more")
    return duration


def _group(name: str) -> str:
    if not is_group(name):
        refuse("is not a group's name", "use letters, digits, _ and - only, at most 120 of them")
    return name


def _consumer_group(name: str) -> str:
    if not is_consumer_group(name):
        refuse("is not a consumer group's name", "use letters, digits, _ and - only, at most 120 of them")
    return name


def _topic(name: str) -> str:
    if not is_topic(name):
        refuse("is not a topic's name", "see docs/landing.md for what a name may be")
    return name


def _media_type(text: str) -> str:
    if not MEDIA_TYPE.fullmatch(text):
        refuse("is not a media type", "write it as application/json")
    return text


def _registry(url: str) -> str:
    if "?" in url:
        refuse("has a query", "leave out ? and what follows it")
    return _url(url, "set user and password, or a token, beside it").rstrip("/")


def _endpoint(url: str) -> str:
    return _url(url, "give the group a secret: checks are signed with it")


def _url(url: str, keys: str) -> str:
    fix = "write http://host:port/path or https://host/path"
    # urlsplit drops some of these silently, and HTTP clients disagree about the rest.
    if any(char <= " " or char in "\x7f\\" for char in url):
        refuse("has a space, a control character or a backslash", fix)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        refuse("is not a URL", fix)
    if parts.scheme not in ("http", "https") or not host:
        refuse("is not an http or https URL with a host", fix)
    if "@" in parts.netloc:
        refuse("has a user name or password", f"leave it out and {keys}")
    if "#" in url:
        refuse("has a fragment", "leave out # and what follows it")
    return url


def _location(text: str) -> str:
    """A folder or URI: it is shown and logged, so it may hold no key. Azure's ``container@account`` is none."""
    if _ONE_SLASH.match(text):
        refuse("has one slash after its scheme", "write two, as in s3://bucket/path")
    scheme, is_uri, rest = text.partition("://")
    authority = rest.partition("/")[0]
    if is_uri and scheme.lower() in _AZURE:
        authority = re.sub(r"\A[^@:]*@", "", authority)
    if is_uri and ("@" in authority or not _HOST.fullmatch(authority)):
        refuse("has a user name, key or password, or no valid host", "give credentials in the environment")
    if is_uri and "=" in rest.partition("?")[2]:
        refuse("has a query", "leave out ? and what follows it; give credentials in the environment")
    return text


def _values(value: object, noun: str) -> list[str]:
    """The values of a secret that is stated here; none if it is not text, which pydantic refuses, or in a file."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str) or text.startswith(FILE_REFERENCE):
        return []
    if text.startswith(ENV_REFERENCE):
        refuse(f"{ENV_REFERENCE}NAME is resolved when settings are loaded, not here", f"give the {noun} itself")
    return text.split() or [""]


def _secret(value: object) -> object:
    from standardwebhooks import Webhook

    for text in _values(value, "secret"):
        # Webhook ignores invalid base64 characters: a mistyped secret would silently become a different one.
        usable = _BASE64.fullmatch(text.removeprefix("whsec_")) is not None
        if usable:
            try:
                Webhook(text)
            except Exception:  # noqa: BLE001 - what it raises for an empty or truncated key is not part of its API
                usable = False
        if not usable:
            refuse("is not a webhook secret", "give whsec_<base64> or the base64 alone")
    return value


def _token(value: object) -> object:
    if not all(map(is_token, _values(value, "token"))):
        refuse("is not a bearer token", "use 16 to 512 of A-Z a-z 0-9 . _ ~ + / -, as `openssl rand -hex 32` makes")
    return value


def _password(value: object) -> object:
    if _values(value, "password") == [""]:
        refuse("is empty", "leave it out")
    return value


def _conf_key(name: str) -> str:
    if not name.startswith("spark."):
        refuse("is not a Spark setting", "its name begins with spark.")
    return name


def _conf_value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(format_duration, when_used="json")]
DurationFromZero = Annotated[_Duration, AfterValidator(_not_negative)]
PositiveDuration = Annotated[_Duration, AfterValidator(_positive)]
Lasting = Annotated[_Duration, AfterValidator(_retention)]
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(format_size, when_used="json"),
    Field(json_schema_extra={"format": "size"}),
]
Count = Annotated[StrictInt, Field(ge=1, le=INT_MAX)]
QueueId = Annotated[StrictInt, Field(ge=0, le=INT_MAX)]
Text = Annotated[str, Field(min_length=1)]
Folder = Annotated[str, AfterValidator(_location)]
Location = Annotated[Folder, Field(min_length=1)]
GroupName = Annotated[str, AfterValidator(_group)]
ConsumerGroupName = Annotated[str, AfterValidator(_consumer_group)]
MediaType = Annotated[str, AfterValidator(_media_type)]
TopicName = Annotated[str, AfterValidator(_topic)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]
Registry = Annotated[str, AfterValidator(_registry)]
Secret = Annotated[SecretStr | None, BeforeValidator(_secret)]
Token = Annotated[SecretStr | None, BeforeValidator(_token)]
Password = Annotated[SecretStr | None, BeforeValidator(_password)]
ConfKey = Annotated[str, AfterValidator(_conf_key)]
ConfValue = Annotated[str, BeforeValidator(_conf_value)]
SecretConf = Annotated[SecretStr, BeforeValidator(_conf_value)]
