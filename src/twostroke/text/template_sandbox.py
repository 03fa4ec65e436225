"""Jinja's sandbox for chat templates, in which every rendering stays within its budget.

The sandbox stops templates from reaching Python's internals and from changing what they are given.
Before a template is compiled, filters that count are put around what loops or makes values: loops,
``+``, ``~`` and literals. Jinja's other filters, calls, ``*``, ``**``, ``%`` and output count by
its own hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard, cast

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from twostroke.text.template_budget import MAX_STEPS, CountedItems, RenderBudget
from twostroke.text.template_checks import (
    FILTER_CHECKS,
    HARMLESS_FILTERS,
    ITERATING_FILTERS,
    METHOD_CHECKS,
    METHODS,
    REMOVED_FILTERS,
    check_percent,
    check_power,
    check_product,
)

# Names with a space in them: no template can write them.
BUDGET = "render budget"
_LOOP, _SUM, _TEXT, _VALUE = "counted loop", "counted sum", "counted text", "counted value"
_SHORT = 4096  # Characters. Sums of fewer are counted where they are stored, if at all.
_CONTAINERS = (list, tuple, dict, set)


class _OpaqueNamespace(Namespace):
    """A namespace that is short when it is written out, whatever is in it."""

    def __repr__(self) -> str:
        return "<Namespace>"


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """Settings as in ``transformers``; render with a ``RenderBudget`` under the name ``BUDGET``."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_count_value,
        )
        self.globals["range"] = bounded_range
        self.globals["namespace"] = _OpaqueNamespace
        del self.globals["lipsum"]  # makes arbitrarily long texts
        for name in REMOVED_FILTERS:
            del self.filters[name]
        for name in self.filters.keys() - HARMLESS_FILTERS:
            self.add_filter(name, self.filters[name])
        internal = {_LOOP: _loop, _SUM: _sum, _TEXT: _concatenate, _VALUE: _count_value}
        self.filters.update(internal)

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """A filter whose results are counted."""
        self.filters[name] = _bounded_filter(name, function)

    def compiled(self, source: str) -> Template:
        """A template that counts what it uses; one of ``from_string`` would not count loops."""
        counting: nodes.Template = _Counting().visit(self.parse(source))
        counting.set_environment(self)
        return self.from_string(counting)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget: RenderBudget = context.parent[BUDGET]
        if operator == "*":
            budget.take_chars(check_product(budget, left, right))
        elif operator == "**":
            check_power(budget, left, right)
        elif isinstance(left, str):
            budget.take_chars(check_percent(budget, left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if owner is not None:
            args = _check_method(context, owner, obj.__name__, args, kwargs)
            return super().call(context, obj, *args, **kwargs)
        budget: RenderBudget = context.parent[BUDGET]
        budget.take_steps()
        if isinstance(obj, LoopContext):
            args = tuple(CountedItems(items, budget) for items in args)
        elif isinstance(obj, Macro) and (obj.catch_varargs or obj.catch_kwargs):
            budget.size(args)
            budget.size(kwargs)
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, (str, dict)):
            budget.take_chars(budget.size(result))
        return result


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja's base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counting(NodeTransformer):
    """Puts counting filters around whatever loops or makes values."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        written = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filtered(cast(nodes.Expr, node.iter), _LOOP, nodes.Const(written))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        # Otherwise each literal would be counted as it is written.
        node.nodes = [nodes.TemplateData(n.value) if _is_text(n) else n for n in node.nodes]
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        operands: list[nodes.Expr] = [node.right]
        left: nodes.Expr = node.left
        while isinstance(left, nodes.Add):
            operands.append(left.right)
            left = left.left
        visited: list[Any] = [self.visit(operand) for operand in reversed([*operands, left])]
        if all(map(_is_text, visited)):
            return nodes.Const("".join(operand.value for operand in visited), lineno=node.lineno)
        return _filtered(nodes.Tuple(visited, "load", lineno=node.lineno), _SUM)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.Tuple(node.nodes, "load", lineno=node.lineno), _TEXT)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._literal(node, node.items)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._literal(node, node.items) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        parts = [part for pair in node.items for part in (pair.key, pair.value)]
        return self._literal(node, parts)

    def _literal(self, node: nodes.Expr, items: list[nodes.Expr]) -> nodes.Node:
        constant = all(isinstance(item, nodes.Const) for item in items)
        self.generic_visit(node)
        return node if constant else _filtered(node, _VALUE)


def _is_text(node: nodes.Node) -> TypeGuard[nodes.Const]:
    return isinstance(node, nodes.Const) and isinstance(node.value, str)


def _filtered(node: nodes.Expr, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


@pass_context
def _loop(context: Context, items: Any, num_chars: int) -> CountedItems:
    return CountedItems(items, context.parent[BUDGET], num_chars)


@pass_context
def _sum(context: Context, operands: tuple[Any, ...]) -> Any:
    num_chars = 0
    for operand in operands:
        if type(operand) is not str:
            break
        num_chars += len(operand)
    else:
        if num_chars > _SHORT:
            context.parent[BUDGET].take_chars(num_chars)
        return "".join(operands)
    budget: RenderBudget = context.parent[BUDGET]
    total = operands[0]
    for operand in operands[1:]:
        if not isinstance(total, (int, float)):
            budget.take_chars(budget.size(total) + budget.size(operand))
        total = total + operand
    return total


@pass_context
def _concatenate(context: Context, operands: tuple[Any, ...]) -> str:
    budget: RenderBudget = context.parent[BUDGET]
    budget.take_chars(sum(map(budget.size, operands)))
    return "".join(map(str, operands))


@pass_context
def _count_value(context: Context, value: Any) -> Any:
    budget: RenderBudget = context.parent[BUDGET]
    budget.take_chars(len(value) if type(value) is str else budget.size(value))
    return value


def bounded_range(*args: int) -> range:
    """``range`` for templates: a longer one could not be gone through."""
    steps = range(*args)
    # `len` cannot count beyond the machine's word.
    if steps and abs((steps[-1] - steps[0]) // steps.step) + 1 > MAX_STEPS:
        raise SecurityError(f"it loops over more than {MAX_STEPS} numbers")
    return steps


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses too much work before it does it."""
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", None)
    check = FILTER_CHECKS.get(name)
    iterates, joins = name in ITERATING_FILTERS, name == "join"

    @pass_context
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget: RenderBudget = context.parent[BUDGET]
        budget.take_steps(len(value) if iterates and isinstance(value, str) else 1)
        lazy = not isinstance(value, (str, *_CONTAINERS))
        if iterates and not isinstance(value, str):
            value = CountedItems(value, budget)
        if joins:
            value = list(value)
        if check is not None:
            budget.take_chars(check(budget, value, *args, **kwargs))
        if passed is None:
            result = function(value, *args, **kwargs)
        else:
            first = {"context": context, "environment": context.environment}
            leading = first.get(passed, context.eval_ctx)
            result = function(leading, value, *args, **kwargs)
        if isinstance(result, str) or (lazy and isinstance(result, _CONTAINERS)):
            budget.take_chars(budget.size(result))
        return result

    return bounded


def _check_method(
    context: Context, owner: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments, unless no template needs that method or its result would be too long."""
    kind = type(owner)
    if kind not in METHODS:
        kind = next((kind for kind in METHODS if isinstance(owner, kind)), object)
        if kind is object:
            return args
    if name not in METHODS[kind]:
        raise SecurityError(f"it calls {name!r} of a value")
    check = METHOD_CHECKS.get(name) if kind is str else None
    if check is not None:
        budget: RenderBudget = context.parent[BUDGET]
        if name == "join":
            args = tuple(list(CountedItems(items, budget)) for items in args)
        budget.take_chars(check(budget, owner, *args, **kwargs))
    return args
