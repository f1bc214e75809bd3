"""A filter as conditions over columns: of Spark, or of arrays.

An expression is true, false, unknown or an error. A column has no fourth value, so that each is a condition of its own:
`Conditions.true` is what is delivered, and asks for `false` and `error` of what is below only where they decide
(NOT, and what stands before the end of an AND or OR). None of the conditions is ever null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from checkback.errors import SelectorError
from checkback.filter.expressions import (
    And,
    BooleanCast,
    Condition,
    Constant,
    Equal,
    Expression,
    In,
    Negate,
    Not,
    Or,
    Order,
    Ordered,
    Property,
    Searched,
    parts,
)
from checkback.filter.numbers import EvaluationError, NumberType, Value, Whole, is_true

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from checkback.filter.expressions import Search

#: Conditions on columns in one translation. Nested ANDs and ORs that can fail double them with each level.
SIZE_MAX = 1_000

V = TypeVar("V")


class Columns(Protocol[V]):
    """What conditions are made of. Each is true or false, never null; without the property, false.

    Values combine by ``&``, ``|`` and ``~``.
    """

    #: True: a value is computed once, however often it is used. False: each use repeats it.
    shares: bool

    def literal(self, value: bool) -> V:
        """A constant."""
        ...

    def first(self, cases: Sequence[tuple[V, bool]], default: bool) -> V:
        """What the first true condition says."""
        ...

    def present(self, name: str) -> V:
        """The message has the property."""
        ...

    def equals(self, name: str, text: str) -> V:
        """It is this text."""
        ...

    def same(self, name: str, other: str) -> V:
        """Two properties are the same text."""
        ...

    def one_of(self, name: str, texts: Sequence[str]) -> V:
        """It is one of these texts."""
        ...

    def finds(self, name: str, search: Search, part: str) -> V:
        """It has the part, which is not empty."""
        ...

    def is_true(self, name: str) -> V:
        """It is ``true`` in any case."""
        ...

    def is_number(self, name: str, number_type: NumberType) -> V:
        """Java converts it to the type."""
        ...

    def number_equals(self, name: str, number: Whole | float) -> V:
        """It is a number of the constant's type, and equal."""
        ...

    def number_compares(self, name: str, order: Order, number: Whole | float) -> V:
        """It is a number of the constant's type, and compares so."""
        ...

    def doubles_compare(self, name: str, order: Order, other: str) -> V:
        """Both are doubles, and compare so (Double.compare)."""
        ...


class _Failing:
    """A constant expression whose evaluation throws."""


class Conditions(Generic[V]):
    """The conditions of one filter over ``columns``. A Python bool is a condition that no message changes."""

    def __init__(self, columns: Columns[V], text: str) -> None:
        self._columns = columns
        self._text = text
        self._size = 0
        self._known: dict[tuple[str, int], tuple[V | bool, int]] = {}

    def delivered(self, condition: Condition) -> V:
        """True where the filter is true. Raises SelectorError if it would be too large."""
        result = self.true(condition)
        return self._columns.literal(result) if isinstance(result, bool) else result

    def true(self, node: Expression) -> V | bool:
        """Where it is true."""
        return self._once("true", node, self._true)

    def false(self, node: Expression) -> V | bool:
        """Where it is false."""
        return self._once("false", node, self._false)

    def error(self, node: Expression) -> V | bool:
        """Where its evaluation throws."""
        return self._once("error", node, self._error)

    def _once(self, kind: str, node: Expression, make: Callable[[Any], V | bool]) -> V | bool:
        """Made once, since what is above asks several times: each level would double the time, or more.

        In a translation that does not share, what it consists of counts at each use.
        """
        key = (kind, id(node))
        if key in self._known:
            known, size = self._known[key]
            self._count(size)
            return known
        before = self._size
        made = make(node)
        self._known[key] = made, self._size - before
        return made

    def _true(self, node: Expression) -> V | bool:  # noqa: PLR0911 - one for each node
        constant = _constant(node)
        if constant is not None:
            return constant.value is True if isinstance(constant, Constant) else False
        if isinstance(node, And):
            return self._all(self.true(operand) for operand in node.operands)
        if isinstance(node, Or):
            return self._chain(node.operands, self.true, self.error)
        if isinstance(node, Not):
            return self.false(node.operand)
        if isinstance(node, In):
            return self._in(node)
        if isinstance(node, Searched):
            return self._searched(node)
        if isinstance(node, Equal):
            return self._any([self._all(self._nulls(node)), self._all([*self._values(node), self._equal(node)])])
        if isinstance(node, Ordered):
            return self._compared(node, node.order)
        return False

    def _false(self, node: Expression) -> V | bool:  # noqa: PLR0911
        constant = _constant(node)
        if constant is not None:
            return constant.value is False if isinstance(constant, Constant) else False
        if isinstance(node, And):
            return self._chain(node.operands, self.false, self.error)
        if isinstance(node, Or):
            return self._all(self.false(operand) for operand in node.operands)
        if isinstance(node, Not):
            return self.true(node.operand)
        if isinstance(node, BooleanCast):
            return self._value(node.operand)
        if isinstance(node, In):
            return self._all([self._value(node.operand), self._not(self._in(node))])
        if isinstance(node, Searched):
            return self._all([self._not(self._searched(node)), self._not(self.error(node))])
        if isinstance(node, Equal):
            left, right = self._values(node)
            null = self._all([left, self._null(node.right)])
            unequal = self._all([left, right, self._not(self._equal(node)), self._not(self._equal_fails(node))])
            return self._any([null, unequal])
        if isinstance(node, Ordered):
            # Of two doubles one compares so or the other way round: Double.compare orders them all.
            return self._compared(node, _OPPOSITE[node.order])
        return False

    def _error(self, node: Expression) -> V | bool:  # noqa: PLR0911
        constant = _constant(node)
        if constant is not None:
            return isinstance(constant, _Failing)
        if isinstance(node, And):
            return self._chain(node.operands, self.error, self.false)
        if isinstance(node, Or):
            return self._chain(node.operands, self.error, self.true)
        if isinstance(node, Not | Negate):
            return self.error(node.operand)
        if isinstance(node, Searched):
            return self.error(node.operand) if node.part else False
        if isinstance(node, Equal):
            fails = self._all([*self._values(node), self._equal_fails(node)])
            return self._any([self.error(node.left), self.error(node.right), fails])
        if isinstance(node, Ordered):
            left, right = self._values(node)
            fails = self._all([left, right, self._not(self._comparable(node))])
            return self._any([self.error(node.left), self._all([left, self.error(node.right)]), fails])
        return False

    # An operand is null, or it has a value, or its evaluation throws.

    def _null(self, node: Expression) -> V | bool:
        constant = _constant(node)
        if constant is not None:
            return isinstance(constant, Constant) and constant.value is None
        if isinstance(node, Property):
            return self._not(self._leaf(self._columns.present(node.name)))
        if isinstance(node, Negate):
            return self._not(self.error(node.operand))
        return self._not(self._any([self.true(node), self.false(node), self.error(node)]))

    def _value(self, node: Expression) -> V | bool:
        constant = _constant(node)
        if constant is not None:
            return isinstance(constant, Constant) and constant.value is not None
        if isinstance(node, Property):
            return self._leaf(self._columns.present(node.name))
        if isinstance(node, Negate):  # of a number it would be a constant, and everything else it makes null
            return False
        return self._any([self.true(node), self.false(node)])

    def _nulls(self, node: Equal) -> list[V | bool]:
        return [self._null(node.left), self._null(node.right)]

    def _values(self, node: Equal | Ordered) -> list[V | bool]:
        return [self._value(node.left), self._value(node.right)]

    # Two operands that both have a value.

    def _equal(self, node: Equal) -> V | bool:  # noqa: PLR0911 - one for each pair of kinds
        """Where they are equal; the text on a Boolean's right is an error, and not equal."""
        left, right = _value_of(node.left), _value_of(node.right)
        if isinstance(node.left, Property):
            if isinstance(node.right, Property):
                return self._leaf(self._columns.same(node.left.name, node.right.name))
            if right is None:
                return self._any(
                    [
                        self._all([self._is_true(node.left), self.true(node.right)]),
                        self._all([self._not(self._is_true(node.left)), self.false(node.right)]),
                    ]
                )
            return self._equals_constant(node.left, right)
        if isinstance(node.right, Property):
            return False if left is None or isinstance(left, bool) else self._equals_constant(node.right, left)
        if left is None and right is None:
            return self._any(
                [
                    self._all([self.true(node.left), self.true(node.right)]),
                    self._all([self.false(node.left), self.false(node.right)]),
                ]
            )
        if left is None:
            return (self.true if right else self.false)(node.left) if isinstance(right, bool) else False
        if isinstance(left, str):
            left = is_true(left)
        return (self.true if left else self.false)(node.right) if isinstance(left, bool) else False

    def _equal_fails(self, node: Equal) -> V | bool:
        """Where comparing them throws."""
        left, right = _value_of(node.left), _value_of(node.right)
        if isinstance(node.left, Property):
            return self._not_a_number(node.left, right)
        if isinstance(node.right, Property):
            return True if left is None or isinstance(left, bool) else self._not_a_number(node.right, left)
        return left is None and isinstance(right, str)

    def _equals_constant(self, node: Property, value: str | bool | float | Whole) -> V | bool:
        if isinstance(value, str):
            return self._leaf(self._columns.equals(node.name, value))
        if isinstance(value, bool):
            return self._is_true(node) if value else self._not(self._is_true(node))
        return self._leaf(self._columns.number_equals(node.name, value))

    def _not_a_number(self, node: Property, value: Value) -> V | bool:
        if isinstance(value, bool) or not isinstance(value, Whole | float):
            return False
        return self._not(self._leaf(self._columns.is_number(node.name, NumberType.of(value))))

    def _is_true(self, node: Property) -> V:
        return self._leaf(self._columns.is_true(node.name))

    def _compared(self, node: Ordered, order: Order) -> V | bool:
        """Where both are numbers that compare so."""
        left, right = node.left, node.right
        if isinstance(left, Property) and isinstance(right, Property):
            return self._leaf(self._columns.doubles_compare(left.name, order, right.name))
        name, number, swapped = _property_and_number(node)
        if number is None:
            return False
        return self._leaf(self._columns.number_compares(name, order.swapped if swapped else order, number))

    def _comparable(self, node: Ordered) -> V | bool:
        left, right = node.left, node.right
        if isinstance(left, Property) and isinstance(right, Property):
            return self._all(
                self._leaf(self._columns.is_number(side.name, NumberType.DOUBLE)) for side in (left, right)
            )
        name, number, _ = _property_and_number(node)
        return True if number is None else self._leaf(self._columns.is_number(name, NumberType.of(number)))

    def _in(self, node: In) -> V | bool:
        """Where it is true."""
        found = self._leaf(self._columns.one_of(node.operand.name, node.texts))
        return self._all([self._value(node.operand), self._not(found)]) if node.negated else found

    def _searched(self, node: Searched) -> V | bool:
        """Where it is true: nothing but a property is a text that differs from message to message."""
        if not node.part or not isinstance(node.operand, Property):
            return False
        found = self._leaf(self._columns.finds(node.operand.name, node.search, node.part))
        return self._all([self._value(node.operand), self._not(found)]) if node.negated else found

    # Conditions of conditions.

    def _chain(
        self,
        operands: tuple[Condition, ...],
        wanted: Callable[[Expression], V | bool],
        stops: Callable[[Expression], V | bool],
    ) -> V | bool:
        """Where one of the operands is as wanted, and none before it stops the evaluation."""
        cases: list[tuple[V, bool]] = []
        default = False
        for number, operand in enumerate(operands, start=1):
            found = wanted(operand)
            if found is True:
                default = True
                break
            if found is not False:
                cases.append((found, True))
            stopped = stops(operand) if number < len(operands) else False
            if stopped is True:
                break
            if stopped is not False:
                cases.append((stopped, False))
        if all(says is default for _, says in cases):
            return default
        if all(says for _, says in cases):
            return self._any(condition for condition, _ in cases)
        return self._columns.first(cases, default)

    def _all(self, conditions: Iterable[V | bool]) -> V | bool:
        left: list[Any] = [condition for condition in conditions if condition is not True]
        if any(condition is False for condition in left):
            return False
        return _balanced(left, lambda one, other: one & other) if left else True

    def _any(self, conditions: Iterable[V | bool]) -> V | bool:
        left: list[Any] = [condition for condition in conditions if condition is not False]
        if any(condition is True for condition in left):
            return True
        return _balanced(left, lambda one, other: one | other) if left else False

    def _not(self, condition: Any) -> V | bool:
        return not condition if isinstance(condition, bool) else ~condition

    def _leaf(self, condition: V) -> V:
        self._count(1)
        return condition

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > SIZE_MAX and not self._columns.shares:
            raise SelectorError(
                f"more than {SIZE_MAX} conditions",
                "selector as a column",
                "use fewer levels, or mask()",
                text=self._text,
            )


_OPPOSITE = {
    Order.GREATER: Order.LESS_EQUAL,
    Order.GREATER_EQUAL: Order.LESS,
    Order.LESS: Order.GREATER_EQUAL,
    Order.LESS_EQUAL: Order.GREATER,
}


def _constant(node: Expression) -> Constant | _Failing | None:
    """The constant that an expression without properties is; None: it reads properties."""
    if isinstance(node, Constant):
        return node
    if _reads(node):
        return None
    try:
        return Constant(node.evaluate(lambda _: None))
    except EvaluationError:
        return _Failing()


def _reads(node: Expression) -> bool:
    """True if it reads a property; stops at the first, unlike `names`."""
    return isinstance(node, Property) or any(map(_reads, parts(node)))


def _value_of(node: Expression) -> Value:
    """The value of a constant that has one."""
    constant = _constant(node)
    return constant.value if isinstance(constant, Constant) else None


def _property_and_number(node: Ordered) -> tuple[str, Whole | float | None, bool]:
    """The property, the number that it is compared with, and whether that is on the left. None: a side has no value."""
    swapped = isinstance(node.right, Property)
    side, other = (node.right, node.left) if swapped else (node.left, node.right)
    number = _value_of(other)
    if not isinstance(side, Property) or isinstance(number, bool) or not isinstance(number, Whole | float):
        return "", None, swapped
    return side.name, number, swapped


def _balanced(items: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    """All items combined, in a tree of little depth: Spark's and Arrow's are walked recursively."""
    while len(items) > 1:
        pairs = [combine(one, other) for one, other in zip(items[::2], items[1::2], strict=False)]
        items = pairs + items[len(items) // 2 * 2 :]
    return items[0]
