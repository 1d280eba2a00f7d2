#!/usr/bin/env python3
"""Hold the house to its plan: which crate may name which, how many crates the pass crate takes, and who may be unsafe.

    check_crates.py

Run in the project's folder. Prints each arrow that is not in the plan, and ends with 1 if there is one. The plan is the
table below; docs/architecture.md draws it.
"""
import json
import pathlib
import re
import subprocess
import sys

# What each crate of ours may depend on, beside crates of others. Tests may name anything.
ARROWS = {
    "bucketeer-types": set(),
    "bucketeer-chain": set(),
    "bucketeer-cuda": {"bucketeer-types"},
    "bucketeer": {"bucketeer-chain", "bucketeer-types"},
    "bucketeer-comm": {"bucketeer-types", "bucketeer-cuda"},
    "bucketeer-reducer": {"bucketeer-types", "bucketeer-comm", "bucketeer-chain", "bucketeer-cuda"},
    "bucketeer-reducer-c": {"bucketeer-reducer", "bucketeer-comm", "bucketeer-types", "bucketeer-cuda"},
    "bucketeer-eval": {"bucketeer", "bucketeer-types"},
    "bucketeer-formats": {"bucketeer", "bucketeer-types"},
    "bucketeer-draw": {"bucketeer", "bucketeer-types"},
    "bucketeer-exec": {"bucketeer", "bucketeer-types", "bucketeer-comm", "bucketeer-cuda", "bucketeer-eval"},
    "bucketeer-cli": {
        "bucketeer", "bucketeer-types", "bucketeer-comm", "bucketeer-cuda", "bucketeer-eval", "bucketeer-exec",
        "bucketeer-formats", "bucketeer-draw",
    },
    "bucketeer-python": {"bucketeer", "bucketeer-cli", "bucketeer-draw", "bucketeer-formats", "bucketeer-types"},
}

# Inside the pass crate: which modules each may name.
MODULES = {
    "ir": set(),
    "program": {"ir"},
    "passes": {"ir", "program"},
    "check": {"ir", "program"},
    "codegen": {"ir", "program"},
}

# Most crates that a compiler takes with the pass crate, itself included, with default features off.
MOST_CRATES = 15


def main():
    faults = []
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["packages"]
    ours = {package["name"] for package in packages}
    for package in packages:
        name = package["name"]
        if name not in ARROWS:
            # What is for tests alone may name anything, and nothing that is shipped may name it.
            if package.get("publish") != []:
                faults.append(f"{name} is in no plan: add it to ARROWS, or do not publish it")
            continue
        named = {need["name"] for need in package["dependencies"] if need["kind"] is None} & ours
        faults += [f"{name} names {other}" for other in sorted(named - ARROWS[name])]

    command = ["cargo", "tree", "-p", "bucketeer", "--no-default-features", "-e", "normal", "--prefix", "none"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    crates = sorted({" ".join(line.split()[:2]) for line in lines if line})
    if len(crates) > MOST_CRATES:
        faults.append(f"the pass crate takes {len(crates)} crates, more than {MOST_CRATES}: {', '.join(crates)}")

    root = pathlib.Path("src")
    for module, may in MODULES.items():
        for path in sorted([root / f"{module}.rs", *(root / module).rglob("*.rs")]):
            if not path.exists():
                continue
            # Links in comments are no arrows.
            text = re.sub(r"//.*", "", path.read_text())
            named = set(re.findall(r"\bcrate::(\w+)", text)) & set(MODULES)
            faults += [f"{path} names crate::{other}" for other in sorted(named - may - {module})]
    if "#![forbid(unsafe_code)]" not in (root / "lib.rs").read_text():
        faults.append("src/lib.rs does not forbid unsafe code")

    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"{len(ARROWS)} crates and {len(MODULES)} modules keep to the plan; the pass crate takes {len(crates)} crates")


if __name__ == "__main__":
    main()
