"""A parsed SQL92 filter: small nodes, each with RocketMQ's evaluation of one message (org.apache.rocketmq.filter).

``evaluate(get)`` is a node's value where ``get(name)`` is a property's text or None. It raises EvaluationError as soon
as RocketMQ's would throw; the order of evaluation, and what is not evaluated at all, are RocketMQ's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from checkback.filter.numbers import Value, Whole, compare, compare_as_doubles

TAGS, KEYS = "TAGS", "KEYS"
PROPERTIES_COLUMN = "properties"
#: RocketMQ's properties (MessageConst) -> columns
COLUMNS = {TAGS: "tags", KEYS: "keys"}


class Source(NamedTuple):
    """A column, and the key if it is a map."""

    column: str
    key: str | None


def source(name: str) -> Source:
    """Where the property is. An entry TAGS or KEYS of the map does not count: RocketMQ's client refuses these names."""
    return Source(COLUMNS[name], None) if name in COLUMNS else Source(PROPERTIES_COLUMN, name)


Get: TypeAlias = "Callable[[str], str | None]"


class Order(Enum):
    """The comparisons of numbers."""

    GREATER = ">"
    GREATER_EQUAL = ">="
    LESS = "<"
    LESS_EQUAL = "<="

    def holds(self, sign: int) -> bool:
        """True if it holds where left compares with right as ``sign`` with 0."""
        return {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[self.value]

    @property
    def swapped(self) -> Order:
        """The same with its sides exchanged."""
        return Order(self.value.translate(str.maketrans("<>", "><")))


class Search(Enum):
    """The searches in a text."""

    CONTAINS = "CONTAINS"
    STARTS_WITH = "STARTSWITH"
    ENDS_WITH = "ENDSWITH"

    def finds(self, text: str, part: str) -> bool:
        """True if the text has the part where it is searched for."""
        if self is Search.CONTAINS:
            return part in text
        return text.startswith(part) if self is Search.STARTS_WITH else text.endswith(part)


@dataclass(frozen=True)
class Constant:
    """A literal: a text, a number, TRUE, FALSE or NULL (ConstantExpression)."""

    value: Value

    def evaluate(self, get: Get) -> Value:  # noqa: ARG002
        """The literal."""
        return self.value


@dataclass(frozen=True)
class Property:
    """A property's text; null if the message has none of that name (PropertyExpression)."""

    name: str

    def evaluate(self, get: Get) -> Value:
        """Its text."""
        return get(self.name)


@dataclass(frozen=True)
class Negate:
    """The minus sign: null for anything but a number, also for a property (UnaryExpression.createNegate)."""

    operand: Expression

    def evaluate(self, get: Get) -> Value:
        """The negative number, or null."""
        value = self.operand.evaluate(get)
        if isinstance(value, Whole):
            return Whole(-value.value, value.bits)
        return -value if isinstance(value, float) else None


@dataclass(frozen=True)
class BooleanCast:
    """A property as a condition: false whatever its text, null without it (UnaryExpression.createBooleanCast)."""

    operand: Property

    def evaluate(self, get: Get) -> bool | None:
        """False or null."""
        return None if self.operand.evaluate(get) is None else False


@dataclass(frozen=True)
class Not:
    """NOT; null stays null."""

    operand: Condition

    def evaluate(self, get: Get) -> bool | None:
        """The opposite."""
        value = self.operand.evaluate(get)
        return None if value is None else not value


@dataclass(frozen=True)
class And:
    """AND, from the left: what follows a false operand is not evaluated (LogicExpression.createAND)."""

    operands: tuple[Condition, ...]

    def evaluate(self, get: Get) -> bool | None:
        """False at the first false operand, or else null if one is null."""
        return _first(False, self.operands, get)


@dataclass(frozen=True)
class Or:
    """OR, from the left: what follows a true operand is not evaluated (LogicExpression.createOR)."""

    operands: tuple[Condition, ...]

    def evaluate(self, get: Get) -> bool | None:
        """True at the first true operand, or else null if one is null."""
        return _first(True, self.operands, get)


def _first(decisive: bool, operands: tuple[Condition, ...], get: Get) -> bool | None:
    unknown = False
    for operand in operands:
        value = operand.evaluate(get)
        if value is decisive:
            return decisive
        unknown |= value is None
    return None if unknown else not decisive


@dataclass(frozen=True)
class Equal:
    """``=``, and ``IS NULL`` with the constant NULL on the right (ComparisonExpression.doCreateEqual).

    Null on the left alone is null, null on the right alone is false, null on both is true.
    """

    left: Expression
    right: Expression

    def evaluate(self, get: Get) -> bool | None:
        """Are they equal."""
        left, right = self.left.evaluate(get), self.right.evaluate(get)
        if left is None:
            return True if right is None else None
        return right is not None and compare(left, right) == 0


@dataclass(frozen=True)
class Ordered:
    """``>``, ``>=``, ``<``, ``<=``: numbers only, two properties as doubles (ComparisonExpression.evaluate)."""

    order: Order
    left: Expression
    right: Expression

    def evaluate(self, get: Get) -> bool | None:
        """Does it hold; null if a side is null."""
        left = self.left.evaluate(get)
        if left is None:
            return None
        right = self.right.evaluate(get)
        if right is None:
            return None
        if isinstance(left, str) and isinstance(right, str):
            return self.order.holds(compare_as_doubles(left, right))
        return self.order.holds(compare(left, right))


@dataclass(frozen=True)
class Searched:
    """CONTAINS, STARTSWITH, ENDSWITH and their NOT: never null, false for what is no text or for an empty part."""

    search: Search
    operand: Expression
    part: str
    negated: bool

    def evaluate(self, get: Get) -> bool:
        """Is it found; negated: is it not."""
        if not self.part:
            return False
        text = self.operand.evaluate(get)
        return isinstance(text, str) and self.search.finds(text, self.part) is not self.negated


@dataclass(frozen=True)
class In:
    """IN and NOT IN a list of texts; null without the property (UnaryExpression.createInExpression)."""

    operand: Property
    texts: tuple[str, ...]
    negated: bool

    def evaluate(self, get: Get) -> bool | None:
        """Is it one of them; negated: is it not."""
        text = get(self.operand.name)
        return None if text is None else (text in self.texts) is not self.negated


#: RocketMQ's BooleanExpression. A Constant is one if it is TRUE, FALSE or NULL.
Condition: TypeAlias = "Constant | BooleanCast | Not | And | Or | Equal | Ordered | Searched | In"
Expression: TypeAlias = "Condition | Property | Negate"


def parts(node: Expression) -> tuple[Expression, ...]:
    """The nodes directly below one."""
    if isinstance(node, And | Or):
        return node.operands
    if isinstance(node, Equal | Ordered):
        return node.left, node.right
    return () if isinstance(node, Constant | Property) else (node.operand,)


def names(node: Expression) -> frozenset[str]:
    """The properties that an expression reads."""
    if isinstance(node, Property):
        return frozenset({node.name})
    return frozenset().union(*map(names, parts(node)))
