"""SQL92 text -> expression, or SelectorError: what RocketMQ's SelectorParser and its expressions' constructors refuse.

As in RocketMQ, the text need not end where the expression does: whatever cannot continue it is ignored, if its first
token is one (``a = 1 b``, ``a = 1)``, and ``a = 017``, which is ``a = 0`` followed by ``17``).
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from checkback.errors import SelectorError, printable
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
    Search,
    Searched,
    parts,
)
from checkback.filter.numbers import LONG_BITS, Whole, fits

GRAMMAR = r"""
?start: or_expression

?or_expression: and_expression (OR and_expression)*
?and_expression: equality (AND equality)*

?equality: comparison
    | equality EQUAL comparison      -> equal
    | equality NOT_EQUAL comparison  -> not_equal
    | equality IS NULL               -> is_null
    | equality IS NOT NULL           -> is_not_null

?comparison: unary
    | comparison ORDER unary                         -> ordered
    | comparison SEARCH STRING                       -> searched
    | comparison NOT SEARCH STRING                   -> not_searched
    | comparison BETWEEN unary AND unary             -> between
    | comparison NOT BETWEEN unary AND unary         -> not_between
    | comparison IN "(" STRING ("," STRING)* ")"     -> in_list
    | comparison NOT IN "(" STRING ("," STRING)* ")" -> not_in_list

?unary: primary
    | "+" unary
    | MINUS unary -> negate
    | NOT unary   -> not_condition

?primary: STRING -> string
    | WHOLE      -> whole
    | DOUBLE     -> double
    | TRUE       -> true
    | FALSE      -> false
    | NULL       -> null
    | NAME       -> property
    | "(" or_expression ")"

OR: "OR"i
AND: "AND"i
NOT: "NOT"i
BETWEEN: "BETWEEN"i
IN: "IN"i
IS: "IS"i
TRUE: "TRUE"i
FALSE: "FALSE"i
NULL: "NULL"i
SEARCH.2: /(?:CONTAINS|STARTSWITH|ENDSWITH)(?![a-z0-9_$])/i

EQUAL: "="
NOT_EQUAL.2: "<>"
ORDER: /[<>]=?/
MINUS: "-"

DOUBLE.2: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
WHOLE: /0|[1-9][0-9]*l?/i
STRING: /'(?:''|[^'])*'/
NAME: /[a-z_$][a-z0-9_$]*/i

SPACE: /[ \t\n\r\f]+/
BLOCK_COMMENT.2: /\/\*(?:[^*]|\*+[^*\/])*\*+\//
%ignore SPACE
%ignore BLOCK_COMMENT
"""

#: The terminals in an error's words.
WORDS = {
    "STRING": "a string",
    "WHOLE": "a number",
    "DOUBLE": "",
    "NAME": "a property",
    "TRUE": "TRUE",
    "FALSE": "",
    "SEARCH": "CONTAINS, STARTSWITH, ENDSWITH",
    "ORDER": ">, >=, <, <=",
    "EQUAL": "=",
    "NOT_EQUAL": "<>",
    "MINUS": "",
    "PLUS": "",
    "LPAR": "(",
    "RPAR": ")",
    "COMMA": "a comma",
    "$END": "the end",
}


#: Characters of a text. RocketMQ has no limit but that of a request.
TEXT_MAX = 100_000
#: Nested operators. RocketMQ's own limit is Java's stack, and ours would be Python's.
DEPTH_MAX = 100
#: Operators, constants and properties that one evaluation may visit: BETWEEN evaluates its value twice.
SIZE_MAX = 100_000
_SHOWN = 30
_DIGITS_MAX = 19
#: texts and block comments, as far as they go, and line comments
_OPAQUE = re.compile(r"'[^']*+(?:'|\Z)|/\*(?s:.)*?(?:\*/|\Z)|--[^\n\r]*+[\n\r]")


def parse(text: str) -> Condition:
    """The condition that a SQL92 text states. Raises SelectorError."""
    if len(text) > TEXT_MAX:
        raise _refused(text, TEXT_MAX, f"more than {TEXT_MAX} characters", "use fewer of them")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refused(text, error.start, "half of a surrogate pair") from None
    try:
        parsed = _parse(_without_line_comments(text))
        condition = _condition(parsed)
    except _Refusal as refusal:
        raise _refused(text, refusal.at, refusal.what, refusal.fix) from None
    what = _excess(condition)
    if what:
        raise _refused(text, 0, what, "use fewer levels")
    return condition


def _without_line_comments(text: str) -> str:
    """The text with blanks in their place; one must end in a line break.

    Not the lexer's: after the last line break it would search the rest of the text at each ``--``.
    """
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    return _OPAQUE.sub(lambda found: " " * len(found[0]) if found[0][0] == "-" else found[0], text[:end]) + text[end:]


class _Part(NamedTuple):
    """An expression, and where it begins."""

    node: Expression
    at: int


class _Refusal(Exception):  # noqa: N818 - becomes a SelectorError, which has the text
    def __init__(self, at: int, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.at, self.what, self.fix = at, what, fix


@cache
def _parser() -> Lark:
    # The basic lexer: JavaCC's tokens do not depend on what the parser expects.
    return Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), g_regex_flags=re.ASCII)


def _parse(text: str) -> _Part:
    interactive: Any = _parser().parse_interactive(text)
    token = Token("$END", "", 0)
    try:
        for token in interactive.lexer_thread.lex(interactive.parser_state):
            interactive.feed_token(token)
    except UnexpectedToken as error:
        return _end(interactive, token, error)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        what = "a string without its closing quote" if text[at] == "'" else f"no token begins with {_shown(text[at])}"
        raise _Refusal(at, what) from None
    return _end(interactive, Token("$END", "", len(text)), None)


def _end(interactive: Any, token: Token, unexpected: UnexpectedToken | None) -> _Part:
    """The expression before the token, if it is complete."""
    try:
        part: _Part = interactive.feed_eof(token)
    except UnexpectedToken as error:
        what = f"unexpected {_shown(token)}" if token else "the text ends too early"
        words = filter(None, (WORDS.get(name, name) for name in sorted((unexpected or error).expected)))
        raise _Refusal(token.start_pos or 0, what, f"expected here: {', '.join(words)}") from None
    return part


class _Builder:
    """Nodes from the grammar's rules, each a method; the checks are those of RocketMQ's create methods."""

    def or_expression(self, children: list[Any]) -> _Part:
        return _Part(Or(tuple(map(_condition, children[::2]))), children[0].at)

    def and_expression(self, children: list[Any]) -> _Part:
        return _Part(And(tuple(map(_condition, children[::2]))), children[0].at)

    def equal(self, children: list[Any]) -> _Part:
        left, operator, right = children
        for side in (left, right):
            if side.node == Constant(None):
                raise _Refusal(side.at, f"NULL cannot be compared by {operator}", "write IS NULL or IS NOT NULL")
        if (
            _is_boolean_constant(left.node)
            and isinstance(right.node, Constant)
            and not _is_boolean_constant(right.node)
        ):
            raise _Refusal(left.at, f"{_kind(left.node)} cannot be compared with {_kind(right.node)}")
        return _Part(Equal(left.node, right.node), left.at)

    def not_equal(self, children: list[Any]) -> _Part:
        return _negated(self.equal(children))

    def is_null(self, children: list[Any]) -> _Part:
        return _Part(Equal(children[0].node, Constant(None)), children[0].at)

    def is_not_null(self, children: list[Any]) -> _Part:
        return _negated(self.is_null(children))

    def ordered(self, children: list[Any]) -> _Part:
        left, operator, right = children
        return _Part(_ordered(Order(str(operator)), left, right), left.at)

    def searched(self, children: list[Any]) -> _Part:
        operand, search, text = children
        return _Part(Searched(Search(search.upper()), operand.node, _text(text), negated=False), operand.at)

    def not_searched(self, children: list[Any]) -> _Part:
        operand, _not, search, text = children
        return _Part(Searched(Search(search.upper()), operand.node, _text(text), negated=True), operand.at)

    def between(self, children: list[Any]) -> _Part:
        value, _between, low, _and, high = children
        at_least, at_most = _ordered(Order.GREATER_EQUAL, value, low), _ordered(Order.LESS_EQUAL, value, high)
        if isinstance(low.node, Constant) and isinstance(high.node, Constant) and not _in_order(low.node, high.node):
            raise _Refusal(low.at, "BETWEEN's first number is greater than its second", "exchange them")
        return _Part(And((at_least, at_most)), value.at)

    def not_between(self, children: list[Any]) -> _Part:
        value, _not, _between, low, _and, high = children
        return _Part(Or((_ordered(Order.LESS, value, low), _ordered(Order.GREATER, value, high))), value.at)

    def in_list(self, children: list[Any]) -> _Part:
        return _in(children[0], children[2:], negated=False)

    def not_in_list(self, children: list[Any]) -> _Part:
        return _in(children[0], children[3:], negated=True)

    def negate(self, children: list[Any]) -> _Part:
        minus, operand = children
        return _Part(Negate(operand.node), minus.start_pos)

    def not_condition(self, children: list[Any]) -> _Part:
        token, operand = children
        return _Part(Not(_condition(operand)), token.start_pos)

    def string(self, children: list[Token]) -> _Part:
        return _Part(Constant(_text(children[0])), children[0].start_pos or 0)

    def whole(self, children: list[Token]) -> _Part:
        (token,) = children
        digits = token.rstrip("lL")
        if len(digits) > _DIGITS_MAX or not fits(int(digits), LONG_BITS):
            raise _Refusal(token.start_pos or 0, "a number over 9223372036854775807", "write it with a decimal point")
        return _Part(Constant(Whole.of(int(digits))), token.start_pos or 0)

    def double(self, children: list[Token]) -> _Part:
        (token,) = children
        value = float(token)
        if value == float("inf"):
            raise _Refusal(token.start_pos or 0, "a number too large for a double")
        if value == 0:  # RocketMQ compares with Double.MIN_VALUE, which is not the lowest but the smallest above 0
            raise _Refusal(token.start_pos or 0, "0 with a decimal point or an exponent is refused", "write 0")
        return _Part(Constant(value), token.start_pos or 0)

    def true(self, children: list[Token]) -> _Part:
        return _Part(Constant(True), children[0].start_pos or 0)

    def false(self, children: list[Token]) -> _Part:
        return _Part(Constant(False), children[0].start_pos or 0)

    def null(self, children: list[Token]) -> _Part:
        return _Part(Constant(None), children[0].start_pos or 0)

    def property(self, children: list[Token]) -> _Part:
        return _Part(Property(str(children[0])), children[0].start_pos or 0)


def _condition(part: _Part) -> Condition:
    """SelectorParser.asBooleanExpression."""
    node = part.node
    if isinstance(node, Property):
        return BooleanCast(node)
    if isinstance(node, Negate) or (isinstance(node, Constant) and not _is_boolean_constant(node)):
        raise _Refusal(part.at, f"{_kind(node)} where a condition must be", "compare it")
    return node


def _negated(part: _Part) -> _Part:
    return _Part(Not(_condition(part)), part.at)


def _ordered(order: Order, left: _Part, right: _Part) -> Ordered:
    """ComparisonExpression.checkLessThanOperand: texts and conditions have no order."""
    for side in (left, right):
        if isinstance(side.node, Constant) and not isinstance(side.node.value, bool):
            refused = not isinstance(side.node.value, Whole | float)
        else:
            refused = not isinstance(side.node, Property | Negate)
        if refused:
            raise _Refusal(side.at, f"{_kind(side.node)} cannot be compared by {order.value}", "only numbers can")
    return Ordered(order, left.node, right.node)


def _in_order(low: Constant, high: Constant) -> bool:
    return Ordered(Order.LESS_EQUAL, low, high).evaluate(lambda _: None) is True


def _in(operand: _Part, tokens: list[Token], *, negated: bool) -> _Part:
    if not isinstance(operand.node, Property):
        raise _Refusal(operand.at, f"IN needs a property, not {_kind(operand.node)}")
    return _Part(In(operand.node, tuple(map(_text, tokens)), negated), operand.at)


def _text(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _is_boolean_constant(node: Expression) -> bool:
    return isinstance(node, Constant) and (node.value is None or isinstance(node.value, bool))


def _kind(node: Expression) -> str:
    if isinstance(node, Constant):
        if isinstance(node.value, str):
            return "a string"
        return str(node.value).upper().replace("NONE", "NULL") if _is_boolean_constant(node) else "a number"
    return {Property: "a property", Negate: "a negative value"}.get(type(node), "a condition")


def _excess(node: Expression) -> str:
    """What is too much of it; "": nothing. Level by level: a node that two others share is in a level once."""
    level, size = {id(node): (node, 1)}, 0
    for _ in range(DEPTH_MAX):
        size += sum(uses for _, uses in level.values())
        below: dict[int, tuple[Expression, int]] = {}
        for above, uses in level.values():
            for part in parts(above):
                below[id(part)] = part, below.get(id(part), (part, 0))[1] + uses
        level = below
    if level:
        return f"more than {DEPTH_MAX} operators are nested"
    return f"more than {SIZE_MAX} operators, with those that BETWEEN repeats" if size > SIZE_MAX else ""


def _shown(text: str) -> str:
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return f"`{printable(text)}`"


def _refused(text: str, at: int, what: str, fix: str = "") -> SelectorError:
    begin = max(0, at - _SHOWN)
    near = text[begin : at + _SHOWN]
    excerpt = f"{'...' if begin else ''}{near}{'...' if at + _SHOWN < len(text) else ''}"
    return SelectorError(what, f"selector {_quoted(excerpt)}, character {at + 1}", fix, text=text, position=at + 1)


def _quoted(text: str) -> str:
    return f"`{printable(text)}`"
