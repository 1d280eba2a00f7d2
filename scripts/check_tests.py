#!/usr/bin/env python3
"""No test passes without having asserted something.

    check_tests.py

Run in the project's folder. For each test function, `proptest!` ones included, its body has to hold an assertion, or call a
function of the tests (by name, also by way of others) that holds one; and it may not return early, for a test that finds
nothing to look at has to fail or to be ignored by name. Prints the tests that do not, and ends with 1 if there are any.
"""
import pathlib
import re
import sys

FOLDERS = ["tests", "cli/tests", "testing", "src", "crates", "cli/src", "adapters/burn/tests", "adapters/candle/tests"]
PRODUCT = ["src", "crates", "cli/src"]

# Names that every type has a function of.
COMMON = {"drop", "new", "default", "main", "from", "clone", "run"}

# What fails when something is not as it should be. `unwrap` and its kin assert that there is something.
ASSERTS = re.compile(
    r"\b(?:prop_)?assert(?:_eq|_ne|_snapshot)?!|\bassert\w*\(|\bpanic!|\bunreachable!"
    r"|\.(?:unwrap|expect|unwrap_err|expect_err)\(|\bshould_panic\b"
)
FUNCTION = re.compile(r"\bfn\s+(\w+)\s*(?:<[^>{]*>)?\(")
CALL = re.compile(r"\b(\w+)\s*(?:::<[^>]*>)?\(")
EARLY = re.compile(r"\breturn\s*(?:Ok\(\(\)\)\s*)?;|\belse\s*\{\s*return\b")


def without_texts(text):
    """The source with comments and the insides of texts blanked, so that braces count."""
    out, at = [], 0
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/|r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\[^']+|[^'\\])'", re.S
    )
    for match in pattern.finditer(text):
        out.append(text[at:match.start()])
        out.append(re.sub(r"[^\n]", " ", match.group()))
        at = match.end()
    out.append(text[at:])
    return "".join(out)


def closing(text, at, pair):
    """Where what opens at a place is closed, and one further."""
    depth = 0
    while at < len(text):
        depth += {pair[0]: 1, pair[1]: -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            break
    return at


def functions(text):
    """Each function with where it starts and its body."""
    for match in FUNCTION.finditer(text):
        # Strategies of `proptest!` may hold braces.
        start = text.find("{", closing(text, match.end() - 1, "()"))
        semicolon = text.find(";", closing(text, match.end() - 1, "()"))
        if start < 0 or 0 <= semicolon < start:
            continue
        at = closing(text, start, "{}")
        yield match.group(1), match.start(), text[start:at]


def main():
    bodies, tests = {}, []
    for folder in FOLDERS:
        for path in sorted(pathlib.Path(folder).rglob("*.rs")):
            text = without_texts(path.read_text())
            if folder in PRODUCT:
                # Of the product, what its tests are made of: a function of its own asserts nothing for a test.
                start = text.find("#[cfg(test)]")
                text = re.sub(r"[^\n]", " ", text[:start]) + text[start:] if start >= 0 else ""
            for name, start, body in functions(text):
                bodies.setdefault(name, []).append(body)
                # The attributes stand right above, with blank lines and comments blanked.
                above = text[:start].rstrip()
                above = above[max(above.rfind("}"), above.rfind(";"), above.rfind("{"), 0):]
                if re.search(r"#\[test\]", above):
                    tests.append((path, text.count("\n", 0, start) + 1, name, above, body))
    # The store checks itself for fuzzers, and panics.
    asserting = {"fuzz"} | {name for name, all_of in bodies.items() if name not in COMMON and any(ASSERTS.search(body) for body in all_of)}
    while True:
        more = {
            name
            for name, all_of in bodies.items()
            if name not in asserting | COMMON and any(set(CALL.findall(body)) & asserting for body in all_of)
        }
        if not more:
            break
        asserting |= more
    faults = []
    for path, line, name, above, body in tests:
        asserts = ASSERTS.search(body) or "should_panic" in above or set(CALL.findall(body)) & asserting
        if not asserts:
            faults.append(f"{path}:{line}: `{name}` asserts nothing")
        first = body.find("\n")
        if EARLY.search(body[:first if first > 0 else None]) or re.match(r"\{\s*(?:let\b[^;]*\belse\s*\{\s*return|if\b[^{]*\{\s*return)", body):
            faults.append(f"{path}:{line}: `{name}` may return before it has asserted anything")
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"{len(tests)} tests assert something")


if __name__ == "__main__":
    main()
