"""A subscription's filter with RocketMQ's meaning, for one message, for Spark and for Arrow (docs/consumer.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.errors import SelectorError, missing_module
from checkback.filter.expressions import KEYS, TAGS, Condition, Constant, In, Property, names, source
from checkback.filter.numbers import EvaluationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import Column


ALL = "*"
#: String.trim: all up to the space
_TRIMMED = "".join(map(chr, range(0x21)))


def tags_of(text: str | None) -> frozenset[str] | None:
    """The tags that are delivered, compared whole. None: every message, also one without tags.

    None, "" and "*" are all messages; only white space: none at all. Raises SelectorError.
    """
    if not text or text == ALL:
        return None
    parts = text.split("||")
    if not any(parts):
        raise SelectorError("no tag between ||", "tag filter", "name a tag, or use *", text=text, position=1)
    return frozenset(filter(None, (part.strip(_TRIMMED) for part in parts)))


@dataclass(frozen=True)
class MessageSelector:
    """Which messages of a topic a consumer gets: RocketMQ's MessageSelector.

    Made by `by_tag` and `by_sql`. `matches`, `column` and `mask` agree on every message: True only where
    RocketMQ's broker delivers, so neither where the filter is unknown (null) nor where its evaluation fails. They read
    the columns ``tags``, ``keys`` (string) and ``properties`` (map<string, string>) of topic tables, those in
    ``columns``.
    """

    #: as given; None and "" of a tag filter as "*"
    text: str
    #: RocketMQ's ExpressionType: ``TAG`` or ``SQL92``
    type: str
    condition: Condition

    @classmethod
    def by_tag(cls, text: str | None) -> MessageSelector:
        """Messages with one of these tags: ``A || B``. ``*``, None and "" are all messages, also those without tags.

        Raises SelectorError if there are only ``|``. As FilterAPI.buildSubscriptionData; a message's tags are compared
        whole and exactly, by the consumer's client in RocketMQ.
        """
        tags = tags_of(text)
        condition: Condition = Constant(True) if tags is None else Constant(False)
        if tags:
            condition = In(Property(TAGS), tuple(sorted(tags)), negated=False)
        return cls(text or "*", "TAG", condition)

    @classmethod
    def by_sql(cls, text: str) -> MessageSelector:
        """Messages for which an SQL92 expression is true: ``region = 'eu' AND amount > 5`` (needs lark).

        Raises SelectorError if RocketMQ's SelectorParser refuses the text.
        """
        if not text:
            raise SelectorError("the expression is empty", "selector", "to get all messages: by_tag('*')", text="")
        try:
            from checkback.filter.sql92_parser import parse
        except ModuleNotFoundError as error:
            raise missing_module(error, "consumer") from error
        return cls(text, "SQL92", parse(text))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the filter reads, of ``tags``, ``keys``, ``properties``; may be none."""
        return tuple(sorted({source(name).column for name in names(self.condition)}))

    def matches(
        self, tags: str | None = None, properties: Mapping[str, str] | None = None, keys: str | None = None
    ) -> bool:
        """True if a message with these is delivered.

        ``tags`` and ``keys`` are the properties ``TAGS`` and ``KEYS`` of an SQL92 expression; entries of these names in
        ``properties`` do not count (RocketMQ's client refuses them).
        """
        own = {TAGS: tags, KEYS: keys}
        others = properties or {}
        try:
            return self.condition.evaluate(lambda name: own[name] if name in own else others.get(name)) is True
        except EvaluationError:
            return False

    def column(self) -> Column:
        """A condition for Spark's DataFrames, never null: ``table.where(selector.column())``.

        It consists of Spark's own functions; no Python runs in the executors. Raises SelectorError if the expression
        nests too many conditions that can fail (conditions.SIZE_MAX).
        """
        from checkback.filter.conditions import Conditions
        from checkback.filter.spark_column import SparkColumns

        return Conditions(SparkColumns(), self.text).delivered(self.condition)

    def mask(self, table: pa.Table | pa.RecordBatch) -> pa.BooleanArray:
        """A boolean for each row, never null: ``table.filter(selector.mask(table))``.

        Of what a dataset reads, batch by batch: ``batch.filter(selector.mask(batch))``. Any of Arrow's types of strings
        will do.
        """
        import pyarrow as pa

        if not self.columns:
            return pa.array([self.matches()], pa.bool_()).take(pa.array([0] * table.num_rows, pa.int64()))
        needed = table.select(list(self.columns))
        batches = [needed] if isinstance(needed, pa.RecordBatch) else needed.to_batches()
        return pa.concat_arrays([pa.array([], pa.bool_()), *map(self._mask, batches)])

    def _mask(self, batch: pa.RecordBatch) -> Any:
        import pyarrow as pa

        from checkback.filter.arrow_mask import BatchColumns
        from checkback.filter.conditions import Conditions

        return pa.array(Conditions(BatchColumns(batch), self.text).delivered(self.condition))
