"""CloudEvents 1.0 in messages: the properties that keep an event's attributes. Pure.

Names are those of CloudEvents' RocketMQ binding (io.cloudevents:cloudevents-rocketmq): CE_ and the attribute's name;
an extension has its own name. What a message has a field for is there: id (transaction_id), type (tags), subject
(keys), and the extension partitionkey (ordering key). The binding's clients set properties for these, too.
"""

from __future__ import annotations

import re

SPECVERSION = "1.0"
CE_PREFIX = "CE_"
CE_SPECVERSION, CE_SOURCE, CE_TIME, CE_SCHEMA = "CE_specversion", "CE_source", "CE_time", "CE_dataschema"
CE_CONTENT_TYPE = "CE_contenttype"
CE_ID, CE_TYPE, CE_SUBJECT = "CE_id", "CE_type", "CE_subject"
PARTITION_KEY = "partitionkey"
#: attributes with a meaning of their own, and the members of the JSON format that are none
ATTRIBUTES = frozenset(
    {"specversion", "id", "source", "type", "datacontenttype", "dataschema", "subject", "time", "data", "data_base64"}
)
#: of an extension
EXTENSION = re.compile(r"[a-z0-9]+")
EVENT_JSON, BATCH_JSON = "application/cloudevents+json", "application/cloudevents-batch+json"
#: the printable form of a media type with parameters: a header that holds one holds nothing else
MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?: *;[ -~]*)?")
_JSON = re.compile(r"[^/;]+/(?:[^;]*\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


def is_json(content_type: str) -> bool:
    """True if data of this media type is JSON."""
    return _JSON.fullmatch(content_type.strip()) is not None
