# Random JSON schemas over every keyword that engine/grammar/schema.h enforces. The schemas are this project's
# own; schemas(seed, count) is the same list for the same seed.
import random

PATTERNS = [
    "^[a-z]+$", "^[A-Z]{2}-[0-9]{3,5}$", "foo", "^(yes|no)$", "^\\d{4}$", "^a", "z$", "^[0-9a-f]*$", "^(ab)*$",
    "^(a|bc)*d?$", "\\bcat\\b", "^\\S+( \\S+)*$", "^[^ ]+@[^ ]+\\.[a-z]{2,3}$", "^v\\d+(\\.\\d+){0,2}$", "^\\w+$",
    "^[é漢😀]{1,3}$", "^.$", "^.{2,4}$", "[0-9]", "^\\s?x\\s?$", "^$", "^[^\\x00-\\x7f]+$", "a{2,}b", "^(?:x|y|zz)+?$",
    "^[\\w.-]{1,8}$", "^\\u0041\\x42?$", "^\\/[a-z/]*$", "^\\D\\W?$", "^\"q\"\\\\?$", "(^a|b$)", "^[\\]\\[^-]{1,2}$", "\\Bx",
]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference",
           "json-pointer", "relative-json-pointer"]
NAMES = ["id", "name", "value", "unit", "ok", "list", "sub", "n", "na", "größe", "a b", "q\"", "\\", "", "ключ", "x-1"]
VALUES = ["low", "medium", 1, 2, -7, 2.5, None, True, False, "x y", "ü", "", [], {}, {"a": 1}, [1, "a", [None]], "tab\t\"q\"",
          "\u0000", "😀", 0, 1e3, "a", "ab", "abc"]


class Maker:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.makers = [self.string, self.pattern, self.format, self.integer, self.number, self.multiple, self.values, self.types,
                       self.object, self.open_object, self.named, self.counted, self.required, self.array, self.fixed, self.any_of,
                       self.one_of, self.all_of, self.reference, self.recursive, self.plain]

    def maybe(self, chance=0.5): return self.rng.random() < chance

    def bounds(self, low_name, high_name, low, span):
        low = self.rng.randint(0, low)
        result = {}
        if self.maybe(0.7): result[low_name] = low
        if self.maybe(0.8): result[high_name] = low + self.rng.randint(0, span)
        return result

    def plain(self, depth): return self.rng.choice([{"type": "null"}, {"type": "boolean"}, {"type": "integer"}, {"type": "number"},
                                                    {"type": "string"}, {"type": "string", "maxLength": 20}])

    def string(self, depth): return {"type": "string", **self.bounds("minLength", "maxLength", 6, 12)}

    def pattern(self, depth):
        schema = {"type": "string", "pattern": self.rng.choice(PATTERNS)}
        if self.maybe() and schema["pattern"] in ("foo", "^a", "z$", "^[a-z]+$", "^\\w+$", "[0-9]", "^[0-9a-f]*$", "a{2,}b", "(^a|b$)",
                                                  "\\bcat\\b", "^\\S+( \\S+)*$", "^(a|bc)*d?$", "\\Bx"):
            schema["maxLength"] = self.rng.randint(4, 24)
            if self.maybe(): schema["minLength"] = self.rng.randint(0, 4)
        return schema

    def format(self, depth):
        schema = {"type": "string", "format": self.rng.choice(FORMATS)}
        if schema["format"] in ("hostname", "email", "uri", "uri-reference", "json-pointer") and self.maybe():
            schema["maxLength"] = self.rng.randint(12, 40)
        return schema

    def integer(self, depth):
        low = self.rng.choice([-1, 1]) * self.rng.randint(0, 10 ** self.rng.randint(0, 6))
        schema = {"type": "integer"}
        if self.maybe(0.6): schema[self.rng.choice(["minimum", "exclusiveMinimum"])] = low
        if self.maybe(0.6): schema[self.rng.choice(["maximum", "exclusiveMaximum"])] = low + self.rng.randint(2, 10 ** self.rng.randint(1, 6))
        return schema

    def number(self, depth):
        low = self.rng.choice([-1, 1]) * self.rng.randint(0, 10 ** self.rng.randint(0, 4)) / self.rng.choice([1, 2, 10, 100, 1000])
        schema = {"type": "number"}
        if self.maybe(0.7): schema[self.rng.choice(["minimum", "exclusiveMinimum"])] = low
        if self.maybe(0.7): schema[self.rng.choice(["maximum", "exclusiveMaximum"])] = low + self.rng.choice([0.001, 0.5, 1, 99.99, 1e6])
        return schema

    def multiple(self, depth):
        if self.maybe(0.6):
            schema = {"type": "integer", "multipleOf": self.rng.choice([1, 2, 3, 7, 10, 12, 25, 100, 2.5])}
            low = self.rng.randint(-300, 300)
            if self.maybe(): schema["minimum"] = low
            if self.maybe(): schema["maximum"] = low + 250
        else:
            schema = {"type": "number", "multipleOf": self.rng.choice([0.5, 0.25, 0.1, 0.01, 1.5, 3])}
            low = self.rng.randint(-40, 40) / 4
            if self.maybe(): schema["minimum"] = low
            if self.maybe(): schema["exclusiveMaximum"] = low + 9.5
        return schema

    def values(self, depth):
        if self.maybe(0.3): return {"const": self.rng.choice(VALUES)}
        return {"enum": self.rng.sample(VALUES, self.rng.randint(1, 5))}

    def types(self, depth):
        schema = {"type": self.rng.sample(["string", "null", "integer", "boolean", "number"], self.rng.randint(2, 3))}
        if self.maybe(): schema.update({"maxLength": 5, "minimum": -3, "maximum": 12})
        return schema

    def members(self, depth, most=4):
        names = self.rng.sample(NAMES, self.rng.randint(1, most))
        return {name: self.any(depth - 1) for name in names}

    def object(self, depth):
        members = self.members(depth)
        schema = {"type": "object", "properties": members, "required": [n for n in members if self.maybe(0.7)]}
        if self.maybe(0.3): schema["additionalProperties"] = False
        return schema

    def open_object(self, depth):
        schema = {"type": "object", "additionalProperties": self.rng.choice([True, self.any(0)]), "maxProperties": self.rng.randint(2, 4)}
        if self.maybe(): schema["properties"] = self.members(depth, 2)
        if self.maybe(): schema["propertyNames"] = {"maxLength": self.rng.randint(3, 9)}
        return schema

    def named(self, depth):
        schema = {"type": "object", "patternProperties": {"^x-": self.any(0)}, "additionalProperties": self.rng.choice([False, {"type": "null"}]),
                  "maxProperties": self.rng.randint(1, 4), "propertyNames": {"maxLength": 12}}
        if self.maybe(): schema["patternProperties"]["s$"] = {"type": "integer"}
        if self.maybe(): schema["patternProperties"]["^x-"] = {"type": "integer", "minimum": 3}
        if self.maybe(): schema["properties"] = {"x-1": {"type": ["integer", "null"]}, "is": {}}
        return schema

    def counted(self, depth):
        members = self.members(depth)
        low = self.rng.randint(0, len(members))
        return {"type": "object", "properties": members, "minProperties": low, "maxProperties": self.rng.randint(low, len(members))}

    def required(self, depth):
        return {"type": "object", "required": self.rng.sample(NAMES, 2), "maxProperties": 4, "propertyNames": {"maxLength": 6},
                "additionalProperties": self.any(0)}

    def array(self, depth): return {"type": "array", "items": self.any(depth - 1), **self.bounds("minItems", "maxItems", 2, 4)}

    def fixed(self, depth):
        schema = {"type": "array", "prefixItems": [self.any(depth - 1) for _ in range(self.rng.randint(1, 3))],
                  "items": self.rng.choice([False, {"type": "integer"}, {"enum": [0, "z"]}])}
        if self.maybe(): schema["minItems"] = self.rng.randint(0, len(schema["prefixItems"]))
        if self.maybe(): schema["maxItems"] = schema.get("minItems", 0) + self.rng.randint(0, 3)
        return schema

    def any_of(self, depth):
        schema = {"anyOf": [self.any(depth - 1) for _ in range(self.rng.randint(1, 3))]}
        if self.maybe(0.3): schema = {"type": ["integer", "string"], "anyOf": [{"maximum": -10}, {"maxLength": 3, "minimum": 10}]}
        return schema

    def one_of(self, depth):
        return self.rng.choice([
            {"oneOf": [{"type": "integer", "maximum": 9}, self.string(0), {"type": "null"}]},
            {"oneOf": [self.tagged("a", depth), self.tagged("b", depth)]},
            {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 10, "maximum": 99}]},
            {"oneOf": [{"enum": [1, "x"]}, {"const": None}, {"enum": ["y", 2.5]}]},
            {"oneOf": [{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, {"type": "boolean"}]},
        ])

    def tagged(self, tag, depth):
        return {"type": "object", "properties": {"kind": {"const": tag}, "v": self.any(depth - 1)}, "required": ["kind"],
                "additionalProperties": False}

    def all_of(self, depth):
        return self.rng.choice([
            {"allOf": [{"type": "integer"}, {"minimum": self.rng.randint(-9, 9)}, {"maximum": 40}]},
            {"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}, {"maxLength": 9}]},
            {"type": "string", "allOf": [{"pattern": "[0-9]"}, {"pattern": "[a-z]"}], "minLength": 3, "maxLength": 12},
            {"allOf": [{"type": "object", "properties": {"a": self.any(0)}, "required": ["a"]},
                       {"type": "object", "properties": {"b": self.any(0), "a": {}}, "required": ["b"]}]},
            {"allOf": [{"anyOf": [{"type": "integer", "maximum": 99}, {"type": "string", "maxLength": 6}]}, {"type": ["string", "null"]}]},
            {"allOf": [{"enum": [1, 2, 3, "a"]}, {"enum": [2, "a", None]}]},
            {"allOf": [{"type": "array", "items": {"type": "integer"}, "maxItems": 4}, {"minItems": 1, "items": {"minimum": 0, "maximum": 77}}]},
        ])

    def reference(self, depth):
        schema = {"$defs": {"one": self.any(0), "two": {"type": "array", "items": {"$ref": "#/$defs/one"}, "maxItems": 2},
                            "n": {"$anchor": "number", "type": "integer", "minimum": 1}},
                  "type": "object", "properties": {"p": {"$ref": "#/$defs/one"}, "q": {"$ref": "#/$defs/two"},
                                                   "r": {"$ref": "#number", "maximum": self.rng.randint(1, 500)}}}
        schema["required"] = [n for n in schema["properties"] if self.maybe(0.7)]
        return schema

    def recursive(self, depth):
        leaf = self.any(0)
        return self.rng.choice([
            {"$defs": {"node": {"type": "object", "properties": {"v": leaf, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
                                "required": ["v"]}}, "$ref": "#/$defs/node"},
            {"$defs": {"tree": {"anyOf": [leaf, {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}]}}, "$ref": "#/$defs/tree"},
            {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, "leaf": leaf}, "required": ["leaf"]},
            {"$defs": {"a": {"type": "array", "prefixItems": [{"enum": ["a"]}, {"$ref": "#/$defs/b"}], "items": False, "minItems": 1},
                       "b": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/b"},
        ])

    def any(self, depth):
        """A schema of any kind without definitions; at depth 0, of a kind without parts."""
        if depth <= 0 or self.maybe(0.3):
            return self.rng.choice([self.string, self.pattern, self.format, self.integer, self.number, self.multiple, self.values, self.types,
                                    self.plain])(0)
        return self.rng.choice([m for m in self.makers if m not in (self.reference, self.recursive)])(depth)


def schemas(seed, count):
    """Yields `count` schemas, taking the makers in turn."""
    maker = Maker(seed)
    return [maker.makers[i % len(maker.makers)](1 + i % 3) for i in range(count)]
