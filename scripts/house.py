#!/usr/bin/env python3
"""How the package is built: its rooms, the imports between them, and those that run up or in circles.

A room is what lies directly in the package: a folder, or a module of its own. An arrow is drawn from one room to
another that any of its modules imports anywhere, inside functions and for type checking too. Floors are those that
pyproject.toml lists under import-linter; without such a list nothing is known of up and down, only of circles.

    python scripts/house.py                    # of this checkout
    python scripts/house.py --root FOLDER      # of another one
    python scripts/house.py --arrows           # each arrow as well

Needs nothing but Python's standard library.
"""

import argparse
import ast
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PACKAGE = "placebench"
Arrows = Mapping[str, set[str]]


def main() -> None:
    """Print the counts of a checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="a checkout")
    parser.add_argument("--arrows", action="store_true", help="print each arrow as well")
    given = parser.parse_args()
    modules = read_modules(given.root)
    between_rooms = arrows(modules, room_of)
    floors = read_floors(given.root / "pyproject.toml")
    sizes = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    upward = [
        (room, other)
        for room, others in between_rooms.items()
        for other in others
        if room in floors and other in floors and floors[room] >= floors[other]
    ]
    print(f"rooms               {len(between_rooms)}")
    print(f"arrows              {sum(map(len, between_rooms.values()))}")
    print(f"upward arrows       {len(upward) if floors else 'not known: no floors are declared'}")
    print(f"circles of rooms    {describe(circles(between_rooms))}")
    print(f"circles of modules  {describe(circles(arrows(modules, lambda name: name)))}")
    print(f"modules             {len(modules)}")
    print(f"lines               {sum(sizes.values())}")
    print(f"files over 400      {sum(size > 400 for size in sizes.values())}")
    for room, other in upward:
        print(f"upward: {room} -> {other}")
    if given.arrows:
        for room, others in sorted(between_rooms.items()):
            print(f"{room} -> {', '.join(sorted(others)) or 'nothing'}")


def read_modules(root: Path) -> dict[str, Path]:
    """The package's modules by dotted name, packages without their `__init__`."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def read_floors(settings: Path) -> dict[str, int]:
    """The floor of each room, counted from the top; empty where none are declared."""
    tools = tomllib.loads(settings.read_text(encoding="utf-8")).get("tool", {})
    contracts = tools.get("importlinter", {}).get("contracts", [])
    layers: list[str] = next((contract["layers"] for contract in contracts if contract["type"] == "layers"), [])
    return {room.strip(): floor for floor, layer in enumerate(layers) for room in layer.split("|")}


def room_of(module: str) -> str:
    """The room that a module lies in; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def arrows(modules: Mapping[str, Path], unit_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Which units import which others.

    Args:
        modules: files by dotted name.
        unit_of: gives the unit of a module; modules of the unit `""` are left out.
    """
    found: dict[str, set[str]] = {unit_of(name): set() for name in modules if unit_of(name)}
    for name, path in modules.items():
        if unit := unit_of(name):
            found[unit] |= {unit_of(other) for other in imported(path, modules)} - {unit, "", PACKAGE}
    return found


def imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The package's modules that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module in modules:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in below if name in modules)
            if not all(name in modules for name in below):
                yield node.module


def circles(graph: Arrows) -> list[set[str]]:
    """Sets of units in which each reaches each other."""
    reach = {unit: reachable(graph, unit) for unit in graph}
    found: list[set[str]] = []
    for unit in graph:
        circle = {other for other in reach[unit] if unit in reach.get(other, set())}
        if circle and circle not in found:
            found.append(circle)
    return found


def reachable(graph: Arrows, start: str) -> set[str]:
    """All units at the end of some way from a unit."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for other in graph.get(waiting.pop(), set()) - seen:
            seen.add(other)
            waiting.append(other)
    return seen


def describe(found: list[set[str]]) -> str:
    """How many circles there are, and of how many units each is."""
    return f"{len(found)} (of {', '.join(str(len(circle)) for circle in found)})" if found else "0"


if __name__ == "__main__":
    main()
