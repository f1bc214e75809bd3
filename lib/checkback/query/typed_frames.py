"""Typed bodies on Spark: DataFrames and temporary views whose values are made by the decoder of all others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from checkback.bodies.decoder import ERROR, VALUE, decode
from checkback.storage.log.spark_log import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.bodies.body_format import BodyFormat

#: why a value is null that the decoder has: VARIANT has limits of its own
_NO_VARIANT = "does not fit into a VARIANT"


def with_value_columns(rows: DataFrame, body: BodyFormat) -> DataFrame:
    """The rows with `VALUE` and `ERROR` of their column body; JSON without a schema is a VARIANT.

    Bodies are decoded in Spark's tasks, and only for queries that use one of the two. Raises SettingsError.
    """
    decoded = _decoding(body)(F.col("body"))
    value, error = decoded[VALUE], decoded[ERROR]
    if _is_variant(body):
        variant = F.try_parse_json(value)
        value, error = variant, F.coalesce(error, F.when(value.isNotNull() & variant.isNull(), F.lit(_NO_VARIANT)))
    return rows.withColumns({VALUE: value, ERROR: error})


def value_columns(spark: SparkSession, body: BodyFormat, function: str) -> str:
    """`VALUE` and `ERROR` as SQL's columns of rows ``message``: they call the ``function``, registered in the session.

    Raises SettingsError.
    """
    spark.udf.register(function, _decoding(body))
    decoded = f"{quoted(function)}(message.body)"
    value, error = f"{decoded}.{VALUE}", f"{decoded}.{ERROR}"
    if _is_variant(body):
        text, value = value, f"try_parse_json({value})"
        error = f"coalesce({error}, CASE WHEN {text} IS NOT NULL AND {value} IS NULL THEN '{_NO_VARIANT}' END)"
    return f"{value} AS {VALUE}, {error} AS {ERROR}"


def _is_variant(body: BodyFormat) -> bool:
    return body.body == "json" and body.schema is None


def _decoding(body: BodyFormat) -> Any:
    """A UDF of a body that returns a struct of `VALUE` and `ERROR`. Raises SettingsError."""
    kind = body.decoder.type
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    fields = [pa.field(VALUE, kind), pa.field(ERROR, pa.string())]

    def decoded(bodies: pa.Array) -> pa.Array:
        values, errors = decode(body.decoder, bodies)
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        return pa.StructArray.from_arrays([values, errors], fields=fields)

    returned = StructType([StructField(VALUE, from_arrow_type(kind)), StructField(ERROR, StringType())])
    return arrow_udf(decoded, returned)  # type: ignore[call-overload]  # it takes structs, too
