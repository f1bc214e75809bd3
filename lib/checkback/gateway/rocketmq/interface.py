"""The messages of RocketMQ 5's gRPC interface that producers need, made at run time from their names and numbers.

Apache's own Python package would bring its client, which opens a log file when it is imported, OpenTelemetry and a
compiler. On the wire an enum is an int32 and a map is repeated pairs: they are stated as such here. Fields that are not
stated are passed on where a message is copied.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

SERVICE = "apache.rocketmq.v2.MessagingService"
_PACKAGE = "apache.rocketmq.v2"
_MESSAGES = """
Time { int64 seconds = 1; int32 nanos = 2 }
Status { int32 code = 1; string message = 2 }
Resource { string resource_namespace = 1; string name = 2 }
Address { string host = 1; int32 port = 2 }
Endpoints { int32 scheme = 1; repeated Address addresses = 2 }
Broker { string name = 1; int32 id = 2; Endpoints endpoints = 3 }
MessageQueue { Resource topic = 1; int32 id = 2; int32 permission = 3; Broker broker = 4;
  repeated int32 accept_message_types = 5 }
Digest { int32 type = 1; string checksum = 2 }
SystemProperties { string tag = 1; repeated string keys = 2; string message_id = 3; Digest body_digest = 4;
  int32 body_encoding = 5; int32 message_type = 6; Time born_timestamp = 7; string born_host = 8;
  Time store_timestamp = 9; string store_host = 10; Time delivery_timestamp = 11; int32 queue_id = 13;
  int64 queue_offset = 14; int32 delivery_attempt = 16; string message_group = 17; string trace_context = 18;
  Time orphaned_transaction_recovery_duration = 19 }
Property { string key = 1; string value = 2 }
Message { Resource topic = 1; repeated Property user_properties = 2; SystemProperties system_properties = 3;
  bytes body = 4 }
ExponentialBackoff { Time initial = 1; Time max = 2; float multiplier = 3 }
RetryPolicy { int32 max_attempts = 1; ExponentialBackoff exponential_backoff = 2 }
Publishing { repeated Resource topics = 1; int32 max_body_size = 2; bool validate_message_type = 3 }
Subscription { Resource group = 1 }
UserAgent { int32 language = 1; string version = 2; string platform = 3; string hostname = 4 }
Metric { bool on = 1 }
Settings { int32 client_type = 1; Endpoints access_point = 2; RetryPolicy backoff_policy = 3; Time request_timeout = 4;
  Publishing publishing = 5; Subscription subscription = 6; UserAgent user_agent = 7; Metric metric = 8 }
RecoverOrphanedTransactionCommand { Message message = 1; string transaction_id = 2 }
TelemetryCommand { Status status = 1; Settings settings = 2;
  RecoverOrphanedTransactionCommand recover_orphaned_transaction_command = 5 }
QueryRouteRequest { Resource topic = 1; Endpoints endpoints = 2 }
QueryRouteResponse { Status status = 1; repeated MessageQueue message_queues = 2 }
SendMessageRequest { repeated Message messages = 1 }
SendResultEntry { Status status = 1; string message_id = 2; string transaction_id = 3; int64 offset = 4;
  string recall_handle = 5 }
SendMessageResponse { Status status = 1; repeated SendResultEntry entries = 2 }
EndTransactionRequest { Resource topic = 1; string message_id = 2; string transaction_id = 3; int32 resolution = 4;
  int32 source = 5 }
RecallMessageRequest { Resource topic = 1; string recall_handle = 2 }
RecallMessageResponse { Status status = 1; string message_id = 2 }
AnyRequest { }
AnyResponse { Status status = 1 }
"""
_MESSAGE = re.compile(r"(\w+) \{([^}]*)\}")
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+)")
_SCALARS = {
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


def _classes() -> dict[str, Any]:
    """The messages' classes by their names, in a pool of their own: Apache's may be in this process, too."""
    file = FileDescriptorProto(name="checkback/rocketmq.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGE.findall(_MESSAGES):
        message = file.message_type.add(name=name)
        for repeated, kind, field, number in _FIELD.findall(fields):
            label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
            added = message.field.add(name=field, number=int(number), label=label)
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = [one.name for one in file.message_type]
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in names}


_CLASSES = _classes()


def message(kind: str, /, **fields: Any) -> Any:
    """A new message of this kind."""
    return _CLASSES[kind](**fields)


def parser(kind: str) -> Any:
    """Parses a message of this kind from bytes. It raises DecodeError."""
    return _CLASSES[kind].FromString


def serialized(sent: Any) -> bytes:
    """A message's bytes."""
    content: bytes = sent.SerializeToString()
    return content
