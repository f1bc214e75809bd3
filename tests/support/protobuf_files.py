"""Descriptors as protoc writes them, and classes of their messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

SHOP = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "money.proto";
enum State { OPEN = 0; DONE = 1; }
message Line { double price = 1; float weight = 2; message Deep { bool there = 1; } Deep deep = 3; }
message Order {
  int32 i = 1; sint64 l = 2; uint32 u = 3; uint64 big = 4; bytes raw = 5; string name = 6;
  optional int32 maybe = 7; State state = 8; repeated Line lines = 9; map<string, Line> by_name = 10;
  map<int32, State> states = 11; google.protobuf.Timestamp at = 12; google.protobuf.Int64Value wrapped = 13;
  oneof paid { string cash = 14; Money card = 15; } google.protobuf.Struct more = 16; repeated int32 many = 17;
}
message Tree { repeated Tree below = 1; }
"""
MONEY = 'syntax = "proto3";\npackage shop;\nmessage Money { int64 cents = 1; }\n'
OLD = 'syntax = "proto2";\npackage old;\nmessage Pay { required int32 no = 1; optional string text = 2; }\n'


def write_descriptors(folder: Path) -> None:
    """In the folder shop.bin (with imports), alone.bin (shop.proto without them) and old.bin, by protoc."""
    for name, text in (("shop", SHOP), ("money", MONEY), ("old", OLD)):
        (folder / f"{name}.proto").write_text(text)
    own = Path(protoc.__file__).parent / "_proto"
    for out, source, *more in (
        ("shop.bin", "shop.proto", "--include_imports"),
        ("alone.bin", "shop.proto"),
        ("old.bin", "old.proto"),
    ):
        arguments = ["protoc", f"-I{folder}", f"-I{own}", f"--descriptor_set_out={folder / out}", *more, source]
        assert protoc.main(arguments) == 0


def made(content: bytes, name: str) -> Any:
    """The class of a message, of these descriptors."""
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.Add(each)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
