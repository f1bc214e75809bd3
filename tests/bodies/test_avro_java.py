"""Avro's own Java library is the judge: what it reads of an older writer is what is read here."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pyspark
import pytest

from checkback.bodies.avro_resolution import Input, resolution
from checkback.bodies.avro_types import PRIMITIVE, RECORDS, Part, part_of
from checkback.bodies.decoder import BodyError
from support.avro_schemas import written

_JAVA = """
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.avro.*;
import org.apache.avro.generic.*;
import org.apache.avro.io.*;

public class Judge {
    static Object plain(Object value) {
        if (value instanceof GenericRecord record) {
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("@", record.getSchema().getFullName());
            for (Schema.Field field : record.getSchema().getFields()) {
                found.put(field.name(), plain(record.get(field.pos())));
            }
            return found;
        }
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> found = new TreeMap<>();
            map.forEach((key, each) -> found.put(key.toString(), plain(each)));
            return found;
        }
        if (value instanceof Collection<?> several) return several.stream().map(Judge::plain).toList();
        if (value instanceof ByteBuffer bytes) return new String(bytes.array(), StandardCharsets.ISO_8859_1);
        return value == null || value instanceof Number || value instanceof Boolean ? value : value.toString();
    }

    public static void main(String[] files) throws Exception {
        var json = new com.fasterxml.jackson.databind.ObjectMapper();
        var out = new ArrayList<String>();
        for (String line : Files.readAllLines(Path.of(files[0]))) {
            String[] parts = line.split("\\t", -1);
            Schema writer = new Schema.Parser().parse(parts[0]), reader = new Schema.Parser().parse(parts[1]);
            try {
                var input = DecoderFactory.get().binaryDecoder(HexFormat.of().parseHex(parts[2]), null);
                out.add(json.writeValueAsString(plain(new GenericDatumReader<>(writer, reader).read(null, input))));
            } catch (AvroTypeException error) {
                out.add("none");
            }
        }
        Files.write(Path.of(files[1]), out);
    }
}
"""
_KINDS = [kind for kind in PRIMITIVE if kind != "null"]
_VALUES = {"boolean": True, "int": 7, "long": 70, "float": 1.5, "double": 2.5, "bytes": b"b", "string": "s"}
_WIDER = {"int": ["long", "double"], "long": ["double"], "float": ["double"], "string": ["bytes"], "bytes": ["string"]}


class _Schemas:
    """Random writers' schemas with a value, and readers' that came later."""

    def __init__(self, seed: int) -> None:
        self._random, self._names = random.Random(seed), 0

    def _name(self) -> str:
        self._names += 1
        return f"shop.N{self._names}"

    def writer(self, depth: int = 3) -> tuple[Any, Any]:
        """A schema and a value of it."""
        others = ["record", "record", "enum", "array", "map", "union"]
        kind = self._random.choice(others if depth == 3 else [*_KINDS, *others] if depth else _KINDS)
        if kind == "enum":
            symbol = self._random.choice("AB")
            return {"type": kind, "name": self._name(), "symbols": ["A", "B"]}, symbol
        if kind == "record":
            fields = {name: self.writer(depth - 1) for name in "abc"[: self._random.randint(1, 3)]}
            schema: dict[str, Any] = {"type": kind, "name": self._name()}
            schema["fields"] = [{"name": name, "type": each} for name, (each, _) in fields.items()]
            return schema, {name: value for name, (_, value) in fields.items()}
        if kind in ("array", "map"):
            below, value = self.writer(depth - 1)
            several = {"k": value} if kind == "map" else [value] * self._random.randint(0, 2)
            return {"type": kind, "items" if kind == "array" else "values": below}, several
        if kind == "union":
            below, value = self.writer(0 if self._random.random() < 0.5 else depth - 1)
            if isinstance(below, list):
                return below, value
            name = below["name"] if isinstance(below, dict) and "name" in below else None
            return self._mixed(below), value if name is None else (name, value)
        return kind, _VALUES[kind]

    def _mixed(self, schema: Any) -> list[Any]:
        """A union of a type and others."""
        kind = schema if isinstance(schema, str) else schema["type"]
        others: list[Any] = self._random.sample(
            [each for each in ("null", *_KINDS) if each != kind], self._random.randint(1, 2)
        )
        if kind == "record":  # of the same fields: only its name tells it from the other
            others.append({**json.loads(json.dumps(schema).replace("shop.N", "shop.M")), "name": self._name()})
        union = [schema, *others]
        self._random.shuffle(union)
        return union

    def later(self, schema: Any) -> Any:
        """The schema as a later reader has it."""
        if isinstance(schema, list):
            found = [each if isinstance(each, str) else self.later(each) for each in schema]
            self._random.shuffle(found)
            return found if not any(isinstance(each, list) for each in found) else schema
        if isinstance(schema, str):
            made: Any = self._random.choice([schema, *_WIDER.get(schema, [])])
        elif "items" in schema or "values" in schema:
            made = {key: self.later(each) if key in ("items", "values") else each for key, each in schema.items()}
        elif schema["type"] == "enum":
            made = {**schema, "symbols": self._random.choice([["A", "B"], ["B", "A"], ["A"]])}
            made |= {"default": "A"} if self._random.random() < 0.5 else {}
        else:
            made = self._record(schema)
        return self._mixed(made) if self._random.random() < 0.15 else made

    def _record(self, schema: Any) -> Any:
        fields = [
            {**each, "type": self.later(each["type"])} for each in schema["fields"] if self._random.random() < 0.9
        ]
        self._random.shuffle(fields)
        for name, chance in (("x", 0.3), ("y", 0.05)):
            if self._random.random() < chance:
                kind = self._random.choice(["int", ["null", "int"], ["double", "null"], ["string", "int"]])
                default = {"int": 5, "null": None, "double": 2, "string": "d"}[kind if kind == "int" else kind[0]]
                fields.append({"name": name, "type": kind, **({"default": default} if name == "x" else {})})
        if fields and self._random.random() < 0.2:
            fields[0] = {**fields[0], "name": "renamed", "aliases": [fields[0]["name"]]}
        made = {**schema, "fields": fields}
        return {**made, "name": self._name(), "aliases": [schema["name"]]} if self._random.random() < 0.2 else made


def _plain(part: Part, value: Any) -> Any:
    """A value as the judge writes it: without a union's fields, with a record's name."""
    if value is None:
        return None
    if part.kind == "union":
        ((name, value),) = value.items()
        return _plain(part.below[name], value)
    if part.kind in RECORDS:
        return {"@": part.schema["name"], **{name: _plain(each, value[name]) for name, each in part.below.items()}}
    if part.kind == "array":
        return [_plain(part.below[""], each) for each in value]
    if part.kind == "map":
        return {key: _plain(part.below[""], each) for key, each in value}
    return value.decode("iso-8859-1") if isinstance(value, bytes) else value


def _own(writer: Any, reader: Any, body: bytes) -> Any:
    import fastavro

    named: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    parsed = [
        fastavro.parse_schema(each, named_schemas=names) for each, names in zip((writer, reader), named, strict=True)
    ]
    part = part_of(parsed[1], named[1], "x")
    try:
        return _plain(part, resolution(parsed[0], named[0], part)(Input(body), 0))
    except BodyError as error:
        return str(error)


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
@pytest.mark.processes
@pytest.mark.slow
def test_values_are_those_of_javas_avro(tmp_path: Path) -> None:
    cases = []
    for seed in range(1000):
        schemas = _Schemas(seed)
        writer, value = schemas.writer()
        reader = schemas.later(writer)
        cases.append((writer, reader, written(writer, value)))
    (tmp_path / "Judge.java").write_text(_JAVA)
    given = (f"{json.dumps(writer)}\t{json.dumps(reader)}\t{body.hex()}\n" for writer, reader, body in cases)
    (tmp_path / "given").write_text("".join(given))
    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    command = ["java", "-cp", jars, str(tmp_path / "Judge.java"), str(tmp_path / "given"), str(tmp_path / "judged")]
    subprocess.run(command, check=True, timeout=300)
    judged = (tmp_path / "judged").read_text().splitlines()
    differ = []
    for case, line in zip(cases, judged, strict=True):
        expected = "is of a schema that does not resolve to the reader's" if line == "none" else json.loads(line)
        if (own := _own(*case)) != expected:
            differ.append((case, expected, own))
    assert differ == []
    assert judged.count("none") < 300
