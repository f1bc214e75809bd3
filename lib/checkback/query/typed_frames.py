"""Typed bodies on Spark: DataFrames whose values are made by the decoder that makes them without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from checkback.bodies.decoder import ERROR, VALUE, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from checkback.bodies.body_format import BodyFormat


def with_value_columns(rows: DataFrame, body: BodyFormat) -> DataFrame:
    """The rows with `VALUE` and `ERROR` of their column body. JSON without a schema is a VARIANT.

    Raises SettingsError.
    """
    decoded = F.col("_decoded")
    rows = rows.withColumn("_decoded", decoding(body)(F.col("body")))
    value, error = decoded[VALUE], decoded[ERROR]
    if is_variant(body):
        variant = F.try_parse_json(value)
        lost = F.when(value.isNotNull() & variant.isNull(), F.lit(NO_VARIANT))
        value, error = variant, F.coalesce(error, lost)
    return rows.withColumn(VALUE, value).withColumn(ERROR, error).drop("_decoded")


#: why a value is null that the decoder has
NO_VARIANT = "does not fit into a VARIANT"


def is_variant(body: BodyFormat) -> bool:
    """Whether the values are JSON without a schema, which Spark has a type for."""
    return isinstance(body.decoder.type, pa.BaseExtensionType) or (body.body == "json" and body.schema is None)


def decoding(body: BodyFormat) -> Any:
    """A UDF of a body that returns a struct of `VALUE` and `ERROR`. Raises SettingsError."""
    kind = _plain(body.decoder.type)
    fields = [pa.field(VALUE, kind), pa.field(ERROR, pa.string())]

    def decoded(bodies: pa.Array) -> pa.Array:
        values, errors = decode(body.decoder, bodies)
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        return pa.StructArray.from_arrays([values, errors], fields=fields)

    returned = StructType([StructField(VALUE, from_arrow_type(kind)), StructField(ERROR, StringType())])
    return arrow_udf(decoded, returned)  # type: ignore[call-overload]  # it takes structs, too


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
