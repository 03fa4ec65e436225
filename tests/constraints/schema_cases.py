"""JSON schemas by category, for tests that look whether all answers fit them."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def closed(properties: Schema, required: list[str] | None = None, **others: Any) -> Schema:
    """An object with these properties and no further ones; all are required by default."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **others,
    }


INTEGER: Schema = {"type": "integer"}
NULL: Schema = {"type": "null"}
BOOLEAN: Schema = {"type": "boolean"}
KINDS = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
]
NODE = closed({"v": INTEGER, "next": {"anyOf": [{"$ref": "#/$defs/n"}, NULL]}})
CAT = {**closed({"k": {"const": "cat"}, "lives": INTEGER}), "title": "Cat"}
DOG = {**closed({"k": {"const": "dog"}, "barks": BOOLEAN}), "title": "Dog"}

CATEGORIES: dict[str, list[Schema]] = {
    "types": [*({"type": kind} for kind in KINDS), {"type": ["string", "null", "integer"]}, {}],
    "enums": [
        {"enum": [1, "a", None, {"a": 1}, [1, 2], 1.5, True]},
        {"const": {"a": [1, {"b": 2}]}},
        {"type": "string", "enum": ["a", "b", 3]},
        {"type": "integer", "enum": [1, 2.0, "x"]},
        {"enum": ["é", '"', "\\", "\n", "😀", "\u2028"]},
        {"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, "x"]}]},
    ],
    "references": [
        {"$defs": {"p": {"type": "integer", "minimum": 0}}, "items": {"$ref": "#/$defs/p"}}
        | {"type": "array"},
        {"$defs": {"p": INTEGER}, "type": "array", "items": {"$ref": "#/$defs/p", "maximum": 5}},
        {"$defs": {"a~b/c": NULL}, "$ref": "#/$defs/a~0b~1c"},
        {"$defs": {"x": {"$anchor": "here", "type": "boolean"}}, "$ref": "#here"},
        {"$id": "http://x/y", "$ref": "http://x/y#/$defs/a", "$defs": {"a": NULL}},
        closed({"a": INTEGER, "b": {"$ref": "#/properties/a"}}, ["b"]),
    ],
    "recursion": [
        {"$defs": {"n": NODE}, "$ref": "#/$defs/n"},
        closed({"c": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, []),
        {
            "$defs": {
                "a": closed({"b": {"$ref": "#/$defs/b"}}, []),
                "b": closed({"a": {"$ref": "#/$defs/a"}}, []),
            },
            "$ref": "#/$defs/a",
        },
    ],
    "patterns": [
        {"type": "string", "pattern": pattern}
        for pattern in (
            "^a+b$",
            "b",
            r"^\d{3}-\w+$",
            "^(foo|bar)?$",
            r"^\s\S$",
            "^[\u00e0-\u00ff]{2}$",
            "^x?a.c",
            '^["\\\\/]{2}$',
            "a|^b",
            "^.$",
        )
    ]
    + [
        {"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 4},
        {"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]},
    ],
    "lengths": [
        {"type": "string", "minLength": 3, "maxLength": 5},
        {"type": "string", "maxLength": 0},
        {"minLength": 2},
    ],
    "formats": [{"type": "string", "format": name} for name in FORMATS]
    + [{"type": "integer", "format": "int32"}],
    "numbers": [
        {"type": "integer", "minimum": 3, "maximum": 17},
        {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 2},
        {"type": "integer", "minimum": 2.5},
        {"type": "integer", "minimum": 10, "maximum": 100, "multipleOf": 15},
        {"type": "integer", "minimum": -(10**15), "maximum": 10**15},
        {"type": "number", "minimum": -1.5, "maximum": 2.25},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "multipleOf": 0.5},
        {"type": "number", "maximum": -0.001},
        {"minimum": 5},
    ],
    "arrays": [
        {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
        {"type": "array", "prefixItems": [INTEGER, BOOLEAN], "items": False},
        {"type": "array", "prefixItems": [INTEGER], "items": NULL, "minItems": 3},
        {"type": "array", "items": {"type": "array", "items": BOOLEAN, "maxItems": 1}},
        {"prefixItems": [INTEGER]},
        {"type": "array", "items": False},
    ],
    "objects": [
        closed({"a": INTEGER, "b": {"type": "string"}}),
        closed({"a": INTEGER, "b": BOOLEAN}, ["b"]),
        closed({'é"': INTEGER}),
        {"type": "object", "required": ["z"]},
        {"required": ["z"]},
        {"type": "object", "properties": {"a": False}},
        closed({"a": NULL, "b": NULL}, [], maxProperties=1),
        closed({"a": NULL, "b": NULL}, [], minProperties=1),
        closed({"a": NULL, "b": NULL}, minProperties=2),
    ],
    "additional properties": [
        {"type": "object", "additionalProperties": INTEGER},
        {"type": "object", "additionalProperties": INTEGER, "maxProperties": 2},
        {"type": "object", "additionalProperties": INTEGER, "minProperties": 1},
        {"type": "object", "properties": {"a": True}, "additionalProperties": NULL},
        {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False},
        {
            "type": "object",
            "patternProperties": {"^a": INTEGER},
            "properties": {"ab": {"minimum": 3}},
        },
    ],
    "combinations": [
        {"anyOf": [INTEGER, NULL]},
        {"oneOf": [INTEGER, {"type": "string"}]},
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
        {"allOf": [closed({"a": INTEGER}), {"properties": {"a": {"minimum": 7}}}]},
        {"anyOf": [{"type": "string"}, INTEGER], "oneOf": [{"enum": ["a"]}, {"enum": [4]}]},
        {"$defs": {"c": CAT, "d": DOG}, "discriminator": {"propertyName": "k"}}
        | {"oneOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/d"}]},
        {"oneOf": [closed({"a": INTEGER}), closed({"b": INTEGER})]},
        {
            "type": "object",
            "properties": {"a": INTEGER},
            "anyOf": [{"required": ["a"]}, {"properties": {"b": NULL}, "required": ["b"]}],
        },
    ],
    "unicode": [
        {"type": "string", "pattern": "^[é😀]+$"},
        {"type": "string", "minLength": 1, "maxLength": 1},
        closed({"schlüssel": {"enum": ["straße", "你好"]}}),
    ],
    "older drafts": [
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 3}
        | {"exclusiveMinimum": True},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [INTEGER, NULL],
            "additionalItems": BOOLEAN,
        },
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": INTEGER},
            "$ref": "#/definitions/a",
        },
    ],
}
