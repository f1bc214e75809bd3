"""Who is connected to a running gateway, asked over HTTP. Nothing of gRPC is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import requests

from checkback.errors import CheckbackError, SettingsError
from checkback.gateway.rocketmq.streams import CLIENTS
from checkback.settings.secrets import tokens_of
from checkback.urls import in_url

if TYPE_CHECKING:
    from checkback.settings import Settings

_COLUMNS = pa.schema(
    [
        ("client_id", pa.string()),
        ("language", pa.string()),
        ("version", pa.string()),
        ("address", pa.string()),
        ("connected_at", pa.timestamp("ms", "UTC")),
        ("topics", pa.list_(pa.string())),
    ]
)
_TIMEOUT_S = 10


def connected_clients(settings: Settings) -> pa.Table:
    """RocketMQ's clients at the gateway of these settings, those who have been there longest first.

    Columns: client_id, language, version, address, connected_at, topics. Raises SettingsError if no gateway answers
    there or it has no port for such clients, and CheckbackError if it refuses the groups' tokens.
    """
    url = f"http://{in_url(settings.gateway.host)}:{settings.gateway.port}{CLIENTS}"
    tokens = tokens_of(settings.producers, lambda texts: {text.split()[0] for text in texts.values()}).current
    found: dict[tuple[str, str], dict[str, Any]] = {}
    with requests.Session() as session:
        session.trust_env = False
        for token in tokens or [""]:
            found |= {(client["client_id"], client["address"]): client for client in _asked(session, url, token)}
    rows = sorted(found.values(), key=lambda client: client["connected_at"])
    return pa.Table.from_pylist(rows, schema=_COLUMNS)


def _asked(session: requests.Session, url: str, token: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        response = session.get(url, headers=headers, timeout=_TIMEOUT_S, allow_redirects=False)
    except requests.RequestException as error:
        fix = "start `checkback gateway`, or name its gateway.host and gateway.port"
        raise SettingsError("no gateway answers", url, fix) from error
    if response.status_code == 404:
        raise SettingsError("the gateway has no port for RocketMQ's clients", url, "set gateway.rocketmq.port there")
    if response.status_code != 200:
        raise CheckbackError(
            f"the gateway answers {response.status_code}", url, "give the groups' tokens as it has them"
        )
    clients: list[dict[str, Any]] = response.json()["clients"]
    return clients
