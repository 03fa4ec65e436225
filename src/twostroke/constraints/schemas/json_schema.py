"""A client's JSON schema as the library enforces all of it, or the keyword that it cannot.

The library leaves out keywords that it does not know, and takes options from the schema itself. So
the schema is written anew here, with nothing in it but what is enforced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twostroke.constraints.schemas.closing import Closing, closed_objects
from twostroke.constraints.schemas.disjoint import first_overlap
from twostroke.constraints.schemas.intersections import MAX_WAYS, most_ways
from twostroke.constraints.schemas.json_values import (
    TooMuchWorkError,
    WorkLimit,
    first_inexact_number,
)
from twostroke.constraints.schemas.paths import SchemaPart, longest_path
from twostroke.constraints.schemas.references import References
from twostroke.constraints.schemas.schema_keywords import ANNOTATIONS, ENFORCED, FORMATS
from twostroke.core.errors import InvalidRequestError

MAX_SCHEMA_DEPTH = 60
MAX_PATH = 2_000  # levels through references; what is accepted takes 20 MB of the library's stack
MAX_OPTIONS = 256  # of one oneOf, which are compared with one another
REWRITE = 20  # units of ``WorkLimit`` for each schema
# They are read beside others, or lead to schemas that are rewritten where they are referred to.
READ_ELSEWHERE = ("$defs", "definitions", "$anchor", "$id", "id", "additionalItems")


def rewrite_schema(
    root: Any, param: str, *, closing: Closing = "none", work: WorkLimit | None = None
) -> Any:
    """The schema with nothing but what is enforced, in the terms of draft 2020-12.

    Args:
        root: A schema of any draft from 4 on; not changed.
        param: What errors name as the offending field.
        closing: Which objects that say nothing of further properties have none.
        work: Shared by all schemas of one grammar; by default this one has it alone.

    Raises:
        InvalidRequestError: It names the keyword that is not supported or makes no sense, and where
            it stands; or the schema takes too long to check.
    """
    return _Rewriter(root, param, closing, work or WorkLimit()).rewrite()


class _Rewriter:
    def __init__(self, root: Any, param: str, closing: Closing, work: WorkLimit) -> None:
        self._root = root
        self._param = param
        self._closing: Closing = closing
        self._is_closed: Callable[[dict[str, Any]], bool] = lambda schema: False
        self._work = work
        self._references = References(root)
        # Of new definitions, by the identity of the target: one has many spellings.
        self._names: dict[int, str] = {}
        self._pending: list[tuple[str, Any, str]] = []  # name, schema and where it stood
        self._depth = 0  # of the definition that is being rewritten
        self._referred: list[str] = []  # the names of those that it refers to

    def rewrite(self) -> Any:
        if not isinstance(self._root, (bool, dict)):
            raise self._error("#", "a schema must be an object or a boolean")
        try:
            resolve = self._references.resolve
            self._is_closed = closed_objects(self._root, self._closing, resolve, self._work)
            return self._rewrite()
        except TooMuchWorkError as error:
            message = "the schema takes too long to check"
            raise self._error("#", message, hint="give it fewer options or references") from error

    def _rewrite(self) -> Any:
        parts: dict[str, SchemaPart] = {}
        result = self._definition("#", self._root, "#", parts)
        definitions: dict[str, Any] = {}
        while self._pending:
            name, schema, path = self._pending.pop()
            definitions[name] = self._definition(name, schema, path, parts)
        if longest_path(parts) > MAX_PATH:
            message = f"references lead through more than {MAX_PATH} levels of schemas"
            raise self._error("#", message, hint="put fewer definitions behind one another")
        self._check_ways(result, definitions)
        return {**result, "$defs": definitions} if definitions else result

    def _check_ways(self, root: Any, definitions: dict[str, Any]) -> None:
        targets = {"#": root} | {f"#/$defs/{name}": each for name, each in definitions.items()}
        if most_ways(root, targets, self._work) > MAX_WAYS:
            message = "expressions that must all match one text go on in too many ways together"
            raise self._error("#", message, hint="give fewer or simpler patterns and formats")

    def _definition(self, name: str, schema: Any, path: str, parts: dict[str, SchemaPart]) -> Any:
        """A rewritten schema; how deep it is and what it refers to goes into ``parts``."""
        self._depth, self._referred = 0, []
        result = self._schema(schema, path, 0)
        parts[name] = SchemaPart(self._depth + 1, self._referred)
        return result

    def _schema(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise self._error(path, "a schema must be an object or a boolean")
        self._work.spend(REWRITE)
        if depth > MAX_SCHEMA_DEPTH:
            raise self._error(path, f"schemas are nested more than {MAX_SCHEMA_DEPTH} levels deep")
        self._depth = max(self._depth, depth)
        result: dict[str, Any] = {}
        for keyword, value in schema.items():
            self._check(keyword, value, path)
            if keyword not in ANNOTATIONS and not keyword.startswith("x-"):
                self._add(result, schema, keyword, f"{path}/{keyword}", depth)
        self._check_min_properties(schema, path)
        if self._is_closed(schema):
            result.setdefault("additionalProperties", False)
        return result

    def _check(self, keyword: str, value: Any, path: str) -> None:
        if keyword in ANNOTATIONS or keyword.startswith("x-"):
            return
        if keyword in ("$id", "id") and path == "#":
            return
        if keyword not in ENFORCED:
            raise self._error(f"{path}/{keyword}", f"the keyword {keyword!r} is not supported")
        is_valid, wanted = ENFORCED[keyword]
        if not is_valid(value):
            raise self._error(f"{path}/{keyword}", f"{keyword!r} must be {wanted}")

    def _add(
        self, result: dict[str, Any], schema: dict[str, Any], keyword: str, path: str, depth: int
    ) -> None:
        """Add what one keyword of ``schema`` asks."""
        value = schema[keyword]
        match keyword:
            case "properties" | "patternProperties":
                result[keyword] = {
                    name: self._schema(item, f"{path}/{name}", depth + 1)
                    for name, item in value.items()
                }
            case "anyOf" | "oneOf":
                options = self._list(value, path, depth)
                if keyword == "oneOf":
                    self._check_one_of(value, path)
                if "anyOf" in result:
                    result.setdefault("allOf", []).append({"anyOf": options})
                else:
                    result["anyOf"] = options
            case "allOf":
                result.setdefault("allOf", []).extend(self._list(value, path, depth))
            case "prefixItems":
                result[keyword] = self._list(value, path, depth)
            case "items":
                self._add_items(result, schema, path, depth)
            case "additionalProperties":
                result[keyword] = self._schema(value, path, depth + 1)
            case "$ref":
                result["$ref"] = self._refer(value, path)
            case "format":
                self._add_format(result, schema, path)
            case "enum" | "const":
                if (number := first_inexact_number(value)) is not None:
                    message = f"{keyword!r} holds {number}, which is beyond 2**53"
                    raise self._error(path, message, hint="write large numbers as texts")
                result[keyword] = value
            case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
                self._add_bound(result, schema, keyword)
            case _ if keyword not in READ_ELSEWHERE:
                result[keyword] = value

    def _list(self, schemas: list[Any], path: str, depth: int) -> list[Any]:
        return [
            self._schema(item, f"{path}/{place}", depth + 1) for place, item in enumerate(schemas)
        ]

    def _add_items(
        self, result: dict[str, Any], schema: dict[str, Any], path: str, depth: int
    ) -> None:
        """A list of items, as drafts before 2020-12 wrote it, has become ``prefixItems``."""
        items = schema["items"]
        if not isinstance(items, list):
            result["items"] = self._schema(items, path, depth + 1)
            return
        if items:
            result["prefixItems"] = self._list(items, path, depth)
        if "additionalItems" in schema:
            below = path.removesuffix("items") + "additionalItems"
            result["items"] = self._schema(schema["additionalItems"], below, depth + 1)

    def _add_bound(self, result: dict[str, Any], schema: dict[str, Any], keyword: str) -> None:
        """A bound may be exclusive by a number of its own or, in draft 4, by a flag."""
        end = keyword[-len("minimum") :].lower()
        exclusive = f"exclusive{end.capitalize()}"
        if keyword == exclusive:
            if not isinstance(schema[keyword], bool):
                result[keyword] = schema[keyword]
            elif schema[keyword] and end in schema:
                result[exclusive] = schema[end]
        elif schema.get(exclusive) is not True:
            result[keyword] = schema[keyword]

    def _add_format(self, result: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        name, kinds = schema["format"], schema.get("type", "string")
        if name in FORMATS:
            result["format"] = name
        elif "string" in ([kinds] if isinstance(kinds, str) else kinds):
            supported = ", ".join(sorted(FORMATS))
            raise self._error(path, f"the format {name!r} is not supported (only {supported})")
        # Formats of numbers (int32, double) say how they are stored, and bound nothing.

    def _check_one_of(self, options: list[Any], path: str) -> None:
        """Options that exclude one another are the same as ``anyOf``; no others can be enforced."""
        if len(options) > MAX_OPTIONS:
            raise self._error(path, f"'oneOf' has more than {MAX_OPTIONS} options")
        overlap = first_overlap(options, self._references.resolve, self._work)
        if overlap is not None:
            raise self._error(
                path,
                "'oneOf' is supported where no value fits two options, but options"
                f" {overlap[0]} and {overlap[1]} may both fit one",
                hint="use anyOf, or give both a required property with a 'const' of its own",
            )

    def _check_min_properties(self, schema: dict[str, Any], path: str) -> None:
        # Names that no property lists may come twice, so they cannot be counted.
        least = schema.get("minProperties", 0)
        if least > max(1, len(set(schema.get("required", ())))):
            raise self._error(
                f"{path}/minProperties",
                "'minProperties' above 1 is supported up to the number of 'required' names",
            )

    def _refer(self, reference: str, path: str) -> str:
        """The reference to the rewritten target, which is rewritten later if it is new."""
        if reference in ("#", "#/"):
            self._referred.append("#")
            return "#"
        target = self._references.resolve(reference)
        if target is None:
            raise self._error(path, f"'$ref' {reference[:100]!r} leads to nothing in the schema")
        if id(target) not in self._names:
            self._names[id(target)] = name = str(len(self._names))
            self._pending.append((name, target, reference))
        self._referred.append(self._names[id(target)])
        return f"#/$defs/{self._names[id(target)]}"

    def _error(self, path: str, message: str, hint: str | None = None) -> InvalidRequestError:
        path = path if len(path) <= 200 else f"{path[:100]}...{path[-100:]}"
        return InvalidRequestError(f"{message}, at {path}", param=self._param, hint=hint)
