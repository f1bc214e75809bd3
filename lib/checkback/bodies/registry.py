"""A Schema Registry's schemas, by Confluent's REST API, and the header that its serializers put before a body.

An id's schema never changes, so it is asked for once in a process. An id that the registry does not know is the body's
fault, and asked for again after seconds: the registry may lag behind the first message. A registry that is down, or
refuses, is not: that is a StorageError.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from checkback.bodies.decoder import BodyError
from checkback.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from requests import PreparedRequest, Session

_MAGIC = b"\0"
#: seconds to connect, and between two parts of an answer; for the whole of it, with retries
_TIMEOUT = 5, 10
_DEADLINE = 30
#: seconds for which an id is unknown
_UNKNOWN = 5
#: unknown ids that are asked for in a second: bodies may name any
_MISSES = 100
_RETRIES = 2
_MAX_BYTES = 16 << 20
#: of one schema, with what those refer to: so many may refer to each other in a registry that is not well
_MAX_REFERENCES = 200
#: error codes of 404: no such schema; no such subject, version
_NO_SCHEMA, _NO_SUBJECT = (40403,), (40401, 40402)
#: by status what helps
_REFUSED = dict.fromkeys((301, 302, 303, 307, 308), "set schema_registry to the URL that it leads to")
_REFUSED |= {401: "set user and password, or token", 403: "give the user or token the right to read schemas"}


@dataclass(frozen=True)
class Registered:
    """A schema: its text; the schemas that it refers to, by name, those referred to first; AVRO, JSON or PROTOBUF."""

    text: str
    references: tuple[tuple[str, str], ...] = ()
    kind: str = "AVRO"


@dataclass(frozen=True)
class Registry:
    """A Schema Registry: its URL, and how it knows us."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def schema(self, number: int, form: str = "") -> Registered:
        """The schema of an id. ``form``: the API's format. Raises BodyError if there is none, StorageError."""
        key = self, number, form
        if _unknown.get(key, 0) <= _clock():
            try:
                return _by_id(*key)
            except _UnknownError:
                now = _clock()
                _misses.append(now)
                if len(_unknown) >= _MAX_UNKNOWN:
                    _unknown.clear()
                _unknown[key] = now + _UNKNOWN
        raise BodyError(f"names schema {number}, which the registry does not have")

    def latest(self, subject: str, form: str = "") -> Registered:
        """The latest schema of a subject. Raises StorageError, also if there is none."""
        path = f"subjects/{quote(subject, safe='')}/versions/latest"
        found = self._get(path, form, _NO_SUBJECT)
        if found is None:
            fix = "register a schema, set subject, or set schema or schema_file"
            raise StorageError(f"the registry has no subject {subject}", f"{self.url}/{path}", fix)
        return self._with_references(found, form)

    def _with_references(self, answer: Mapping[str, Any], form: str) -> Registered:
        found: dict[str, str] = {}
        self._collect(answer, form, found, set())
        return Registered(_text(answer, self.url), tuple(found.items()), str(answer.get("schemaType", "AVRO")))

    def _collect(self, answer: Mapping[str, Any], form: str, found: dict[str, str], within: set[str]) -> None:
        """Add the schemas that one refers to, the ones that these refer to before them."""
        for each in answer.get("references") or ():
            name, subject, version = (each.get(key) for key in ("name", "subject", "version"))
            if not (isinstance(name, str) and isinstance(subject, str) and isinstance(version, int)):
                raise StorageError("a reference has no name, subject and version", self.url, "look at the registry")
            if name in found or name in within:
                continue
            path = f"subjects/{quote(subject, safe='')}/versions/{version}"
            below = self._get(path, form, _NO_SUBJECT)
            if below is None or len(within) > _MAX_REFERENCES:
                raise StorageError("a schema refers to one that is not there", f"{self.url}/{path}", "register it")
            within.add(name)
            self._collect(below, form, found, within)
            found[name] = _text(below, self.url)

    def _get(self, path: str, form: str, unknown: tuple[int, ...]) -> Mapping[str, Any] | None:
        """The answer; None: a 404 with such an error code. Raises StorageError."""
        url = f"{self.url}/{path}"
        status, content = _answered(self, url, form)
        if status not in (200, 404):
            raise _unusable(f"answered {status}", url, _REFUSED.get(status))
        try:
            answer: Any = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        found: dict[str, Any] = answer if len(content) <= _MAX_BYTES and isinstance(answer, dict) else {}
        if status == 404 and found.get("error_code") in unknown:
            return None
        if status == 404 or not found:  # of something else than a registry, or of another path of its
            raise _unusable("answered what is not of its API", url, "is schema_registry the API's URL?")
        return found


_clock, _sleep = time.monotonic, time.sleep
_MAX_UNKNOWN = 100_000
#: until when an id is unknown; when the last ones were asked for
_unknown: dict[tuple[Registry, int, str], float] = {}
_misses: deque[float] = deque(maxlen=_MISSES)


class _UnknownError(Exception):
    """The registry does not have an id; not remembered by `_by_id`."""


@lru_cache(4096)
def _by_id(registry: Registry, number: int, form: str) -> Registered:
    if len(_misses) == _MISSES and _clock() - _misses[0] < 1:
        _sleep(1)
    answer = registry._get(f"schemas/ids/{number}", form, _NO_SCHEMA)
    if answer is None:
        raise _UnknownError
    return registry._with_references(answer, form)


def _answered(registry: Registry, url: str, form: str) -> tuple[int, bytes]:
    """Status and content, within `_DEADLINE`: a registry may send a byte every second. Raises StorageError."""
    answers: SimpleQueue[tuple[int, bytes] | BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(_asked(registry, url, form))
        except BaseException as error:  # noqa: BLE001 - raised below
            answers.put(error)

    Thread(target=ask, name="schema registry", daemon=True).start()
    try:
        answer = answers.get(timeout=_DEADLINE)
    except Empty:
        raise _unusable(f"gave no whole answer in {_DEADLINE} s", url) from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _asked(registry: Registry, url: str, form: str) -> tuple[int, bytes]:
    import requests

    try:
        params = {"format": form} if form else None
        # No redirects: requests reads their bodies whole.
        with _session(registry).get(
            url, params=params, timeout=_TIMEOUT, stream=True, allow_redirects=False
        ) as response:
            return response.status_code, response.raw.read(_MAX_BYTES + 1, decode_content=True)
    except (requests.RequestException, OSError) as error:
        raise _unusable(f"gave no answer ({type(error).__name__})", url) from None
    except Exception as error:  # of urllib3, while the body is read
        if not type(error).__module__.startswith("urllib3"):
            raise
        raise _unusable(f"gave no whole answer ({type(error).__name__})", url) from None


@lru_cache(16)
def _session(registry: Registry) -> Session:
    from requests import Session
    from requests.adapters import HTTPAdapter
    from requests.auth import HTTPBasicAuth
    from urllib3.util import Retry

    session = Session()
    session.headers["Accept"] = "application/vnd.schemaregistry.v1+json, application/json"
    if registry.user is not None:
        session.auth = HTTPBasicAuth(registry.user.encode(), (registry.password or "").encode())
    elif registry.token is not None:
        session.auth = _Bearer(registry.token)
    retry = Retry(
        _RETRIES,
        status_forcelist=(429, 502, 503, 504),
        backoff_factor=0.2,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=retry))
    return session


class _Bearer:
    """Authenticates by a token; as a header alone a .netrc would replace it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _unusable(what: str, url: str, fix: str | None = None) -> StorageError:
    return StorageError(f"the schema registry {what}", url, fix or "look at the registry, then ask again")


def _text(answer: Mapping[str, Any], url: str) -> str:
    text = answer.get("schema")
    if not isinstance(text, str):
        raise _unusable("answered what is not a schema's JSON", url)
    return text


def split_header(body: bytes) -> tuple[int, bytes]:
    """The id of the schema, and what follows it. Raises BodyError if the body does not begin with such a header."""
    if len(body) < 5 or body[:1] != _MAGIC:
        raise BodyError("does not begin with a schema's id (magic byte 0, then 4 bytes)")
    return int.from_bytes(body[1:5], "big"), body[5:]
