"""The page of implemented facts: `python -m tests.fidelity` writes `docs/fidelity.md`, `--check` only compares.

Reads the modules as objects for the values and as text for what stands beside what; reads the tests as text for who
uses a fact. Whether a value is the specification's is for the tests to say, not for this page.

A fact has a source in one of these ways, the first that applies:

* it carries one (`source=`): layouts, architectures, parameters of machine files, size windows;
* `NAME_SOURCE` is the source of `NAME`;
* its docstring, or the comment on its line, has a sentence that begins with "Source:";
* a source constant nearby: in a run of lines without a gap, one whose words the name contains, or the one before
  (when the run begins with a source) or behind. A "Source:" comment or a layout counts as one before;
* an enumeration or a number: `SOURCE` of the module.

A source constant that documents no value is a rule's: the functions that cite it are the facts.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import io
import pkgutil
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import rota
from rota.facts import Confidence, Source
from rota.isa.layout import Layout
from tests.citations import HEX_FROM, Citation, citation, cite, show
from tests.pins import UNPINNED, Pins, imports

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "fidelity.md"
COMMAND: Final = "python -m tests.fidelity"
SKIPPED: Final = frozenset({"rota.__main__", "rota.cli", "rota.facts"})  # no facts of their own
WIDTH: Final = 80
UNCITED: Final = "source beside no value, cited by no function"

DOCUMENTED: Final = "rota.machine.layouts.documented_groups"  # what the rows of a machine file's `layouts` become
_TOML_USES: Final = {"routing": ".routing_ids", "torus": ".port_lane", "ports": ".port_lane", "layouts": DOCUMENTED}


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """One row of the page; `uses` are the keys by which `Pins` finds who uses it."""

    module: str
    name: str
    value: str
    cited: Citation
    uses: tuple[str, ...]
    through: tuple[str, ...] = ()  # the same of what reaches a private name, which tests do not use


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
    """An assignment or a comment of a module: what it says of itself, and what of its neighbours (`mark`)."""

    name: str
    own: Citation | None
    mark: Citation | None
    constant: bool = False  # a source constant, which may also document the lines before it

    def speaks_of(self, name: str) -> bool:
        """Say whether the words of this source constant stand in a name: `SLOTS_SOURCE` and `LEAST_SLOTS`."""
        stem, words = _stem(self.name), f"_{name.strip('_')}_"
        return self.constant and (f"_{stem}_" in words or f"_{stem}S_" in words)


Run = list[Item]


# The facts of one module.


class Reader:
    """One module, as an object and as text, while its facts are collected."""

    def __init__(self, module: ModuleType, text: str) -> None:
        self.module = module
        self.body = ast.parse(text).body
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self.comments = {each.start[0]: each for each in tokens if each.type == tokenize.COMMENT}
        self.found: dict[tuple[str, Citation], Fact] = {}
        plain = [each for each in self.body if not isinstance(each, ast.FunctionDef | ast.ClassDef)]
        self.built = frozenset(_loaded(plain))  # names that values are made of
        self.documenting = set(self.built)  # source constants that document a value
        self.constants = {
            name: value
            for name, value in vars(module).items()
            if isinstance(value, Source) and any(_target(each) == name for each in self.body)
        }

    def read_values(self) -> None:
        """Collect what the module says of itself as a whole, its constants and its classes."""
        whole = citation(self.module.__doc__)
        if whole is not None:
            self._add("", f"module: {_first(self.module.__doc__)}", whole, f"{self.module.__name__}.*")
        for run in self.runs:
            for item in run:
                if item.name and not item.constant:
                    self._read_constant(run, item)
        classes = [each for each in self.body if isinstance(each, ast.ClassDef)]
        for each in classes:
            self._read_class(each.name)

    @property
    def spare(self) -> dict[str, Source]:
        """The source constants that document no value, by full name; known once the values are read."""
        names = (name for name in self.constants if name not in self.documenting)
        return {f"{self.module.__name__}.{name}": self.constants[name] for name in names}

    def read_rules(self, spare: Mapping[str, Source]) -> set[str]:
        """Collect the functions that have a source or cite a spare one of any module; return the cited ones."""
        known = {name: f"{self.module.__name__}.{name}" for name in self.constants} | imports(self.body)
        here = {name: full for name, full in known.items() if full in spare}
        sources = {name: spare[full] for name, full in here.items()}
        cited = {name for path, node in _functions(self.body) for name in self._read_function(path, node, sources)}
        return {here[name] for name in cited}

    def read_rest(self, uncited: Mapping[str, Source]) -> None:
        """Collect the source constants that nothing cites."""
        for node in self.body:
            name = _target(node)
            source = uncited.get(f"{self.module.__name__}.{name}")
            if source is not None:
                self._add(name, next(filter(None, self._said(node)), UNCITED), cite(source))

    def _add(self, path: str, value: str, cited: Citation, use: str = "") -> None:
        short = self.module.__name__.removeprefix("rota.")
        name = f"{short}.{path}" if path else short
        uses = (use or f"{self.module.__name__}.{path}",)
        through = tuple(f"{self.module.__name__}.{each}" for each in self._reaching(path))
        self.found.setdefault((name, cited), Fact(short, name, value, cited, uses, through))

    def _reaching(self, path: str) -> list[str]:
        """Return the public names of the module that a private one is part of, directly or not."""
        reached = {path.partition(".")[0]} if path.startswith("_") else set()
        size = 0
        while len(reached) > size:
            size = len(reached)
            reached |= {name for name, loads in self._loads.items() if loads & reached}
        return sorted(name for name in reached if not name.startswith("_"))

    @cached_property
    def _loads(self) -> dict[str, set[str]]:
        named = ((getattr(node, "name", "") or _target(node), node) for node in self.body)
        return {name: _loaded([node]) for name, node in named if name}

    @cached_property
    def runs(self) -> list[Run]:
        """The assignments and comments of the module, cut at blank lines, imports and definitions."""
        runs: list[Run] = [[]]
        end = 0
        for first, last, node in sorted([*self._statements(), *self._remarks()], key=lambda block: block[0]):
            item = self._item(node) if node else self._remark(first, last)
            if first > end + 1 or item is None:
                runs.append([])
            if item is not None and (item.name or item.mark):
                runs[-1].append(item)
            end = last
        return [run for run in runs if run]

    def _statements(self) -> list[tuple[int, int, ast.stmt | None]]:
        """Return first line, last line and statement; the docstring of an assignment belongs to it."""
        blocks: list[tuple[int, int, ast.stmt | None]] = []
        for node in self.body:
            if _is_text(node) and blocks and _target(blocks[-1][2]):
                blocks[-1] = (blocks[-1][0], node.end_lineno or node.lineno, blocks[-1][2])
            else:
                starts = [node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))]
                blocks.append((min(starts), node.end_lineno or node.lineno, node))
        return blocks

    def _remarks(self) -> Iterator[tuple[int, int, ast.stmt | None]]:
        """Yield first and last line of the comments between statements."""
        inside = {line for first, last, _ in self._statements() for line in range(first, last + 1)}
        outside = sorted(set(self.comments) - inside)
        for _, group in groupby(enumerate(outside), lambda pair: pair[1] - pair[0]):
            lines = [line for _, line in group]
            yield lines[0], lines[-1], None

    def _remark(self, first: int, last: int) -> Item:
        return Item("", None, citation(" ".join(self._comment(line) for line in range(first, last + 1))))

    def _comment(self, line: int | None) -> str:
        token = self.comments.get(line or 0)
        return token.string.lstrip("# ") if token else ""

    def _item(self, node: ast.stmt) -> Item | None:
        name = _target(node)
        if not name:
            return None
        value = getattr(self.module, name, None)
        if isinstance(value, Source):
            return Item(name, None, cite(value), constant=True)
        if isinstance(value, Layout):
            return Item(name, cite(value.source), cite(value.source))
        return Item(name, next(filter(None, map(citation, self._said(node))), None), None)

    def _said(self, node: ast.stmt) -> list[str]:
        """Return the docstring of an assignment and the comments on its first and last line."""
        after = self.body[self.body.index(node) + 1 :][:1]
        said = [ast.literal_eval(each.value) for each in after if _is_text(each) and isinstance(each, ast.Expr)]
        return [*said, self._comment(node.lineno), self._comment(node.end_lineno)]

    def _read_constant(self, run: Run, item: Item) -> None:
        value = getattr(self.module, item.name, None)
        if _carries_source(value):
            self._add_rows(item.name, value, None)
            return
        near = self._near(run, item)
        if near is not None:
            self.documenting.add(near.name)
        cited = near.mark if near is not None and near.name == f"{item.name}_SOURCE" else item.own
        cited = cited or (near.mark if near is not None else None)
        if cited is None and "SOURCE" in self.constants and _is_number(value) and not item.name.startswith("_"):
            cited = cite(self.constants["SOURCE"])
            self.documenting.add("SOURCE")
        if cited is not None:
            self._add_rows(item.name, value, cited)

    def _near(self, run: Run, item: Item) -> Item | None:
        """Return the neighbour that documents an assignment, or None."""
        every = [other for each in self.runs for other in each]
        exact = [other for other in every if other.constant and other.name == f"{item.name}_SOURCE"]
        if exact or item.own is not None or item.name.startswith("_"):
            return exact[0] if exact else None
        alone = [
            other
            for each in self.runs
            if all(one.mark for one in each)
            for other in each
            if other.name not in self.built and other.speaks_of(item.name)
        ]
        named = alone or [other for other in run if other.speaks_of(item.name)]
        if named:
            return max(named, key=lambda other: len(other.name))
        at, leads = run.index(item), run[0].mark is not None
        before = [other for other in run[:at] if other.mark and (leads or not other.constant)]
        behind = [other for other in run[at:] if other.constant and not leads]
        public = [other.name for other in run if not other.constant and not other.name.startswith("_")]
        if before or not behind or any(behind[0].speaks_of(name) for name in public):
            return before[-1] if before else None
        return behind[0]

    def _add_rows(self, path: str, value: Any, cited: Citation | None) -> None:
        """Add a value, or each record of a table of records; without `cited` they carry their sources."""
        use = f"{self.module.__name__}.{path}"
        if isinstance(value, Mapping) and value and all(map(_is_record, value.values())):
            for key, each in value.items():
                if not isinstance(each, Layout):  # layouts stand under their own names
                    self._add(f"{path}.{key}", show(each), cited or cite(each.source), use)
        elif not type(value).__module__.startswith("numpy"):  # what follows from a layout
            large = isinstance(value, int) and not isinstance(value, Enum) and value >= HEX_FROM
            self._add(path, f"{value} = {show(value)}" if large else show(value), cited or cite(value.source), use)

    def _read_class(self, name: str) -> None:
        found = getattr(self.module, name)
        cited = citation(found.__doc__)
        stem = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
        for constant in (f"{stem}_SOURCE", f"{stem}S_SOURCE", "SOURCE" if issubclass(found, Enum) else ""):
            if constant in self.constants:
                self.documenting.add(constant)
                cited = cited or cite(self.constants[constant])
        if cited is not None:
            self._add(name, show(found) if issubclass(found, Enum) else f"record: {_first(found.__doc__)}", cited)

    def _read_function(self, path: str, node: ast.FunctionDef, spare: Mapping[str, Source]) -> set[str]:
        """Add the rows a function makes and the sources it has; return the spare constants that it cites."""
        rows: list[Any] = [each for each in ast.walk(node) if _calls(each, "_row") or _calls(each, "_static")]
        in_rows = {inner for row in rows for inner in ast.walk(row)}
        for row in sorted(rows, key=lambda row: row.lineno):
            self._add_limit(path, row)
        cited = [] if rows else [citation(ast.get_docstring(node))]
        own = f"{node.name.upper()}_SOURCE"
        if own in spare:
            cited.append(cite(spare[own]))
        for each in ast.walk(node):
            if each in in_rows:
                continue
            if isinstance(each, ast.Name) and each.id in spare:
                cited.append(cite(spare[each.id]))
            elif _calls(each, "Source") and _is_written(each):
                cited.append(cite(self._source(each)))
        use = f".{node.name}" if "." in path else ""
        for one in filter(None, cited):
            self._add(path, f"rule: {_first(ast.get_docstring(node))}".rstrip(": "), one, use)
        return spare.keys() & (_loaded([node]) | {own})

    def _add_limit(self, path: str, row: Any) -> None:
        """Add one size window a function makes, with the expressions it is made of."""
        said = dict(zip(("op", "maximum", "source", "minimum"), map(ast.unparse, row.args), strict=False))
        if said["source"] not in vars(self.module):
            return  # a source chosen at run time: its constants have rows of their own
        low = said.get("minimum", "0")
        twin = "2-D operands" if _calls(row, "_static") else "all operands"
        source = cite(self._source(row.args[2]))
        self._add(
            f"{path}.{said['op']}",
            f"{low} < size <= {said['maximum']}, {twin}",
            source,
            f"{self.module.__name__}.{path}",
        )

    def _source(self, node: Any) -> Source:
        """Return the object a source's name, or its call with literals, stands for."""
        if isinstance(node, ast.Name):
            found = getattr(self.module, node.id)
            assert isinstance(found, Source), f"{self.module.__name__}: {node.id} is no source"
            return found
        page, section, *sure = node.args
        confidence = [getattr(self.module, each.id) for each in sure]
        return Source(ast.literal_eval(page), ast.literal_eval(section), *confidence)


def _stem(name: str) -> str:
    return name.removesuffix("_SOURCE").strip("_")


def _first(doc: str | None) -> str:
    """Return the first sentence of a docstring."""
    return re.split(r"(?<=\.)\s", " ".join(inspect.cleandoc(doc or "").split()))[0]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _target(node: ast.stmt | None) -> str:
    """Return the name an assignment binds, or nothing; a type alias is no assignment."""
    if isinstance(node, ast.AnnAssign) and "TypeAlias" not in ast.unparse(node.annotation):
        return node.target.id if isinstance(node.target, ast.Name) else ""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return {
        each.id
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _is_written(source: Any) -> bool:
    """Say whether a call of `Source` gives page and section as literals."""
    return all(isinstance(each, ast.Constant) for each in source.args[:2])


def _is_number(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, tuple) and all(isinstance(each, int) for each in value))


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _carries_source(value: object) -> bool:
    every = list(value.values()) if isinstance(value, Mapping) else [value]
    return bool(every) and all(isinstance(getattr(each, "source", None), Source) for each in every)


def _functions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield dotted names and nodes of functions and methods."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


# The facts of the package.


def modules() -> dict[str, tuple[ModuleType, str]]:
    """Return every module of the package with its text, by name."""
    names = sorted(each.name for each in pkgutil.walk_packages(rota.__path__, "rota.") if each.name not in SKIPPED)
    loaded = {name: importlib.import_module(name) for name in names}
    return {name: (each, Path(str(each.__file__)).read_text(encoding="utf-8")) for name, each in loaded.items()}


def module_facts(module: ModuleType, text: str) -> list[Fact]:
    """Return the facts of one module, given as an object and as text."""
    return read([(module, text)])[module.__name__]


def read(sources: Iterable[tuple[ModuleType, str]]) -> dict[str, list[Fact]]:
    """Return the facts of modules that may cite each other's sources, by module and in the order of the file."""
    readers = [Reader(module, text) for module, text in sources]
    for reader in readers:
        reader.read_values()
    spare = {name: source for reader in readers for name, source in reader.spare.items()}
    cited = {name for reader in readers for name in reader.read_rules(spare)}
    for reader in readers:
        reader.read_rest({name: source for name, source in spare.items() if name not in cited})
    return {reader.module.__name__: list(reader.found.values()) for reader in readers}


def machine_facts(stem: str, text: str) -> list[Fact]:
    """Return the facts of one machine file: every table with a `source`."""
    module = f"machine.platforms.{stem}"
    return [
        Fact(module, f"{module}.{path}", value, cited, uses)
        for path, value, cited, uses in _tables(tomllib.loads(text), ())
    ]


def _tables(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, str, Citation, tuple[str, ...]]]:
    if "source" in table:
        source = table["source"]
        cited = cite(Source(source["page"], source["section"], Confidence(source["confidence"])))
        rest = {key: each for key, each in table.items() if key not in ("source", "name", "note")}
        value = show(rest)
        if rest.keys() == {"value", "unit"}:
            value = f"{rest['value']} {rest['unit']}"
        elif rest.keys() == {"by_lnc", "unit"}:
            each = (f"{number} {rest['unit']} at LNC {lnc}" for lnc, number in sorted(rest["by_lnc"].items()))
            value = ", ".join(each)
        yield ".".join(path), value, cited, (_TOML_USES.get(path[0], repr(path[-1])),)
        return
    for key, each in table.items():
        if isinstance(each, Mapping):
            yield from _tables(each, (*path, key))
        elif isinstance(each, list) and each and isinstance(each[0], Mapping):
            for row in each:
                yield from _tables(row, (*path, key, row["name"]))


def facts() -> list[Fact]:
    """Return every fact of the package, by module and then as in the file."""
    found = read(modules().values())
    for path in sorted((ROOT / "src" / "rota" / "machine" / "platforms").glob("*.toml")):
        found[f"rota.machine.platforms.{path.stem}"] = machine_facts(path.stem, path.read_text(encoding="utf-8"))
    return [fact for name in sorted(found) for fact in found[name]]


# The page.


def all_tests() -> dict[str, str]:
    """Return the text of every test file but the one of this page, by path from the root."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    named = {path.relative_to(ROOT).as_posix(): path for path in paths if path.name != "test_fidelity.py"}
    return {name: path.read_text(encoding="utf-8") for name, path in named.items()}


def rows() -> list[tuple[Fact, str]]:
    """Return every fact with the test that pins it."""
    pins = Pins(all_tests(), {name: text for name, (_, text) in modules().items()})
    return [(fact, _pin(fact, pins)) for fact in facts()]


def _pin(fact: Fact, pins: Pins) -> str:
    part = fact.module.split(".")[0]
    found = pins.of(fact.uses, part)
    return found if found != UNPINNED else pins.of(fact.through, part)


def page(found: list[tuple[Fact, str]]) -> str:
    """Return the page."""
    counts = Counter(fact.cited.confidence for fact, _ in found)
    unpinned = sum(pin == UNPINNED for _, pin in found)
    sure = ", ".join(f"{counts[each]} {each.value}" for each in Confidence)
    lines = [
        "# Fidelity",
        "",
        f"Generated by `{COMMAND}`; do not edit. One row a fact that the code states, as the code states it.",
        'A source with several claims has its weakest; "convention" is a choice of this project (`open-questions.md`).',
        "The test is one that uses the fact, its own part's before others; `-` when none names it.",
        "Fields of a layout stand as name @byte type, bits as name @byte:low bit+width, `record` for `RECORD`.",
        "",
        f"{len(found)} facts: {sure}; {unpinned} without a test.",
    ]
    for module, group in groupby(found, lambda row: row[0].module):
        lines += ["", f"## {module}", "", "| fact | value | source | confidence | test |", "|---|---|---|---|---|"]
        lines += [_row(fact, pin) for fact, pin in group]
    return "\n".join(lines) + "\n"


def _row(fact: Fact, pin: str) -> str:
    cells = (fact.name, _cut(fact.value), fact.cited.text, fact.cited.confidence.value, pin)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1].rstrip(" ,") + "…"


def is_stale(path: Path, text: str) -> bool:
    """Say whether a file differs from the page it should hold; one that is missing does."""
    return not path.exists() or path.read_text(encoding="utf-8") != text


def main(arguments: list[str], path: Path = PAGE) -> int:
    """Write the page, or with `--check` compare: 0 fresh or written, 1 stale, 2 for any other argument."""
    if arguments not in ([], ["--check"]):
        print(f"usage: {COMMAND} [--check]", file=sys.stderr)
        return 2
    text = page(rows())
    if not arguments:
        path.write_text(text, encoding="utf-8")
    elif is_stale(path, text):
        print(f"{path.name} is stale: run `{COMMAND}`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
