"""The grammar of RocketMQ's SQL92 filters, for lark (LALR). Its rules are those of RocketMQ's SelectorParser.

Line comments are blanked before (`sql92_parser`), ``0`` is a number of its own (``017`` is ``0`` and ``17``), an
identifier is ASCII. Matched with re.ASCII: without it Python's `[a-z]`, whatever the case, has the Kelvin sign and the
long s, too.
"""

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
