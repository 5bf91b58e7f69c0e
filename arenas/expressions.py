"""Values of arithmetic that a model has written, without running it as code."""

import ast
import operator
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

__all__ = ["value_of"]

_OPERATORS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: Fraction.__truediv__,
}
MAX_CHARACTERS = 200
_SIGNS = str.maketrans("\u00d7\u00f7\u2212", "*/-")  # as books print them


def value_of(expression: str) -> tuple[Fraction, list[int]]:
    """The value of an expression of whole numbers with + - * /, and the numbers in its order.

    Raises:
        ValueError: it is not such an expression, or divides by zero.
    """
    used: list[int] = []

    def value(node: ast.AST) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return Fraction(node.value)
        raise ValueError("only whole numbers and + - * / are allowed")

    text = expression.translate(_SIGNS).strip()
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"the expression has {len(text)} characters; at most {MAX_CHARACTERS}")
    try:
        return value(ast.parse(text, mode="eval").body), used
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an expression: {error}") from error
