"""Which tests use which names of the package, read from their text: the last column of `docs/fidelity.md`.

Nothing is run, so a test that finds its subjects by a scan of modules is not seen to use them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

UNPINNED: Final = "-"


@dataclass(frozen=True, slots=True)
class Use:
    """A test that uses something: itself or through a name of its file, in a check or elsewhere."""

    place: str
    direct: bool
    checked: bool

    def rank(self, part: str) -> tuple[bool, bool, bool, str]:
        """Order the tests of a fact: direct ones first, then its part's own, then those that check it, then by name."""
        own = (f"tests/unit/{part}/", f"tests/unit/test_{part}.py")
        return (not self.direct, not self.place.startswith(own), not self.checked, self.place)


class Pins:
    """Which tests use which names of the package.

    A key is the full name of something a test imports, `.name` of an attribute, or the repr of a string. `module.*`
    stands for anything of a module.
    """

    def __init__(self, texts: Mapping[str, str], sources: Mapping[str, str]) -> None:
        self.sources = sources
        self.origins = {name: imports(ast.parse(text).body) for name, text in sources.items()}
        self.uses: dict[str, list[Use]] = defaultdict(list)
        for path, text in texts.items():
            self._read(path, ast.parse(text).body)

    def of(self, keys: Iterable[str], part: str) -> str:
        """Return the test, as `tests/path.py::test_name`, that uses any of the keys; `-` when none does.

        `part` is the subpackage or module of the package whose own tests come first.
        """
        uses = [use for key in keys for use in self.uses.get(key, ())]
        return min(uses, key=lambda use: use.rank(part)).place if uses else UNPINNED

    def _read(self, path: str, body: list[ast.stmt]) -> None:
        known = imports(inner for each in body for inner in ast.walk(each))
        parts: dict[str, tuple[set[str], set[str]]] = {}
        for node in body:
            inner = list(ast.walk(node))
            parts |= dict.fromkeys(_bound(node, inner), (self._keys(inner, known), _reached(inner)))
        for name, node in _test_functions(body):
            inner = list(ast.walk(node))
            direct = self._keys(inner, known)
            checks = [each for each in inner if isinstance(each, ast.Assert | ast.With)]
            checked = self._keys((each for one in [*checks, *node.decorator_list] for each in ast.walk(one)), known)
            place = f"{path}::{name}"
            for key in direct | self._through(parts, _reached(inner)):
                self.uses[key].append(Use(place, key in direct, key in checked))

    def _through(self, parts: Mapping[str, tuple[set[str], set[str]]], names: set[str]) -> set[str]:
        """Return the keys reached through names of the same file: helpers, fixtures and constants."""
        seen: set[str] = set()
        todo = names & parts.keys()
        while todo:
            seen |= todo
            todo = {each for name in todo for each in parts[name][1]} & parts.keys() - seen
        return {key for name in seen for key in parts[name][0]}

    def _keys(self, nodes: Iterable[ast.AST], known: Mapping[str, str]) -> set[str]:
        keys: set[str] = set()
        for each in nodes:
            if isinstance(each, ast.Name) and each.id in known:
                keys |= self._named(known[each.id])
            elif isinstance(each, ast.Attribute):
                head, rest = _dotted(each)
                keys |= {f".{each.attr}", *self._named(f"{known.get(head, head)}{rest}")}
            elif isinstance(each, ast.Constant) and isinstance(each.value, str):
                keys.add(repr(each.value))
        return keys

    def _named(self, full: str) -> set[str]:
        """Return the keys of a full name, followed to the module that defines it."""
        module, _, name = full.rpartition(".")
        while name in self.origins.get(module, {}):
            module, _, name = self.origins[module][name].rpartition(".")
        return {f"{module}.{name}", f"{module}.*"} if module in self.sources else set()


def imports(body: Iterable[ast.AST]) -> dict[str, str]:
    """Return what the import statements among these bind: name -> full name."""
    known: dict[str, str] = {}
    for node in body:
        if isinstance(node, ast.ImportFrom):
            known |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            known |= {each.asname: each.name for each in node.names if each.asname}
    return known


def _bound(node: ast.stmt, inner: Iterable[ast.AST]) -> list[str]:
    """Return the names a top-level statement binds, out of all its nodes; no test is reached by name."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [] if node.name.startswith("test_") else [node.name]
    return [each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]


def _dotted(node: ast.expr) -> tuple[str, str]:
    """Return the first name of `a.b.c` and the rest, `.b.c`; no name when it is an expression."""
    if isinstance(node, ast.Attribute):
        head, rest = _dotted(node.value)
        return head, f"{rest}.{node.attr}"
    return (node.id, "") if isinstance(node, ast.Name) else ("", "")


def _reached(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that nodes load or, as a test does a fixture, take."""
    return {
        each.id if isinstance(each, ast.Name) else each.arg for each in nodes if isinstance(each, ast.Name | ast.arg)
    }


def _test_functions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield names, with their classes as pytest prints them, and nodes of the tests of a file."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _test_functions(node.body, f"{prefix}{node.name}::")
