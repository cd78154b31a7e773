# A recognizer of GBNF, llama.cpp's notation for grammars, written from its documentation and independent of
# engine/grammar: Gbnf(text).matches(text). Slow; for texts of a few hundred characters. Tokens (<...>) are not
# supported.
import sys


class GbnfError(Exception): pass


class Gbnf:
    # Expressions: ("chars", negated, [(low, high)]), ("seq", [..]), ("or", [..]), ("rule", name),
    # ("repeat", expression, least, most or None).
    def __init__(self, text):
        self.text, self.at, self.rules = text.replace("\r\n", "\n"), 0, {}
        self.blanks(True)
        while self.at < len(self.text):
            name = self.name()
            self.blanks(False)
            if not self.take("::="): raise GbnfError(f"::= expected at {self.at}")
            self.blanks(True)
            self.rules[name] = self.alternatives(False)
            self.blanks(True)
        if "root" not in self.rules: raise GbnfError("no root")

    def peek(self): return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, word):
        if not self.text.startswith(word, self.at): return False
        self.at += len(word)
        return True

    def blanks(self, newlines):
        while self.peek() and self.peek() in (" \t\n\r" if newlines else " \t") or self.peek() == "#":
            if self.peek() == "#":
                while self.peek() not in ("", "\n"): self.at += 1
            else: self.at += 1

    def name(self):
        start = self.at
        while self.peek().isascii() and (self.peek().isalnum() or self.peek() == "-") and self.peek(): self.at += 1
        if start == self.at: raise GbnfError(f"name expected at {self.at}")
        return self.text[start:self.at]

    def alternatives(self, nested):
        found = [self.sequence(nested)]
        while self.take("|"):
            self.blanks(True)
            found.append(self.sequence(nested))
        return ("or", found)

    def sequence(self, nested):
        items = []
        while True:
            c = self.peek()
            if c == '"':
                self.at += 1
                letters = []
                while self.peek() != '"': letters.append(("chars", False, [(self.char(),) * 2]))
                self.at += 1
                item = ("seq", letters)
            elif c == "[": item = self.char_class()
            elif c == ".":
                self.at += 1
                item = ("chars", True, [])
            elif c == "(":
                self.at += 1
                self.blanks(True)
                item = self.alternatives(True)
                if not self.take(")"): raise GbnfError(f") expected at {self.at}")
            elif c and c.isascii() and (c.isalnum() or c == "-"): item = ("rule", self.name())
            else: return ("seq", items)
            self.blanks(nested)
            while self.peek() and self.peek() in "*+?{":
                item = ("repeat", item, *self.counts())
                self.blanks(nested)
            items.append(item)

    def counts(self):
        sign = self.peek()
        self.at += 1
        if sign != "{": return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        inside = self.text[self.at:self.text.index("}", self.at)]
        self.at += len(inside) + 1
        parts = [part.strip() for part in inside.split(",")]
        least = int(parts[0])
        return least, least if len(parts) == 1 else int(parts[1]) if parts[1] else None

    def char(self):
        c = self.peek()
        if not c: raise GbnfError("the text ends inside a literal")
        self.at += 1
        if c != "\\": return ord(c)
        c = self.peek()
        self.at += 1
        if c in "xuU":
            digits = {"x": 2, "u": 4, "U": 8}[c]
            self.at += digits
            return int(self.text[self.at - digits:self.at], 16)
        if c in "trn": return {"t": 9, "r": 13, "n": 10}[c]
        if c in '\\"[]-': return ord(c)
        raise GbnfError(f"escape at {self.at}")

    def char_class(self):
        self.at += 1
        negated, ranges = self.take("^"), []
        while self.peek() != "]":
            low = high = self.char()
            if self.peek() == "-" and self.text[self.at + 1:self.at + 2] != "]":
                self.at += 1
                high = self.char()
            ranges.append((low, high))
        self.at += 1
        return ("chars", negated, ranges) if ranges else ("seq", [])

    def matches(self, text):
        """Whether the grammar derives all of `text`. Computes the ends of rules as a least fixed point, so left recursion works."""
        sys.setrecursionlimit(200000)
        ends = {}
        changed = True
        while changed:
            changed, seen = False, set()

            def rule(name, at):
                nonlocal changed
                known = ends.setdefault((name, at), frozenset())
                if (name, at) in seen: return known
                seen.add((name, at))
                found = known | walk(self.rules[name], {at})
                if found != known:
                    changed = True
                    ends[(name, at)] = found
                return found

            def walk(node, places):
                kind = node[0]
                if kind == "chars":
                    return {p + 1 for p in places if p < len(text) and
                            any(low <= ord(text[p]) <= high for low, high in node[2]) != node[1]}
                if kind == "seq":
                    for part in node[1]:
                        places = walk(part, places)
                        if not places: break
                    return places
                if kind == "or": return set().union(*(walk(part, places) for part in node[1]))
                if kind == "rule": return set().union(*(rule(node[1], p) for p in places))
                _, part, least, most = node
                for _ in range(least): places = walk(part, places) if places else places
                result, front, times = set(places), set(places), least
                while front and (most is None or times < most):
                    front = walk(part, front) - result
                    result |= front
                    times += 1
                return result

            rule("root", 0)
        return len(text) in ends[("root", 0)]
