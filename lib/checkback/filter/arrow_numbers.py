"""Columns of text in Arrow -> numbers as Java reads them, as integers that compare alike (`numbers.key`).

Plain numbers are converted by Arrow's kernels; of the rest each distinct text once, by `numbers.key`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.filter.numbers import NumberType, key

#: As many digits as an Integer has for sure, and no plus, which Arrow does not take.
_PLAIN_WHOLE = r"\A-?[0-9]{1,9}\z"
_PLAIN_DOUBLE = r"\A-?[0-9]{1,17}(?:\.[0-9]{1,17})?\z"


def keys(texts: Any, number_type: NumberType) -> Any:
    """int64, null where the text is no number of the type; ``texts``: a pa.StringArray."""
    is_double = number_type is NumberType.DOUBLE
    plain = pc.fill_null(pc.match_substring_regex(texts, _PLAIN_DOUBLE if is_double else _PLAIN_WHOLE), False)
    numbers = pc.cast(pc.if_else(plain, texts, None), pa.float64() if is_double else pa.int64())
    if is_double:
        numbers = _order_keys(numbers)
    odd = pc.and_(pc.is_valid(texts), pc.invert(plain))
    if not pc.any(odd, min_count=0).as_py():
        return numbers
    return pc.if_else(odd, _each(pc.if_else(odd, texts, None), number_type), numbers)


def _order_keys(doubles: Any) -> Any:
    """`numbers.order_key` of each; none is NaN."""
    bits = pc.fill_null(doubles, 0.0).to_numpy(zero_copy_only=False).view(np.int64)
    ordered = np.where(bits >= 0, bits, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return pc.if_else(pc.is_valid(doubles), pa.array(ordered), None)


def _each(texts: Any, number_type: NumberType) -> Any:
    encoded = pc.dictionary_encode(texts)
    judged = [None if text is None else key(text, number_type) for text in encoded.dictionary.to_pylist()]
    return pa.array(judged, pa.int64()).take(encoded.indices)


@cache
def function(number_type: NumberType) -> str:
    """The name of `keys` as a function for Arrow's expressions, registered in this process."""
    name = f"checkback_{number_type.value}_key"
    doc = {"summary": f"Java's {number_type.value} as an integer that compares alike", "description": "null: no number"}

    def call(_context: Any, texts: Any) -> Any:
        if isinstance(texts, pa.Scalar):
            text = texts.as_py()
            return pa.scalar(None if text is None else key(text, number_type), pa.int64())
        return keys(texts, number_type)

    pc.register_scalar_function(call, name, doc, {"text": pa.string()}, pa.int64())
    return name
