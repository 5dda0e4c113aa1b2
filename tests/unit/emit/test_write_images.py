"""Images in a directory: complete or not at all, never in somebody else's place."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.images import Ring

from rota.emit import write_images
from rota.errors import UsageError

RING = Ring()
HEAD = {"platform": "trn2.48xlarge", "seed": 7, "collectives": [{"request": RING.request.to_text()}]}


def write(directory: Path, ring: Ring = RING) -> None:
    write_images(directory, ring.images, ring.request.members, head=HEAD, words=b"words")


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_images_words_and_a_manifest(tmp_path: Path) -> None:
    """The manifest says what it is told, its schema, and names each file with its machine rank, size and digest."""
    write(tmp_path / "out")
    found = content(tmp_path / "out")
    manifest = json.loads(found.pop("manifest.json"))
    assert found.pop("words.bin") == b"words"
    assert [found[name] for name in sorted(found)] == list(RING.images)
    assert [entry["rank"] for entry in manifest["images"]] == [0, 1, 4]
    for entry in manifest["images"]:
        assert entry["size"] == len(found[entry["name"]])
        assert entry["sha256"] == hashlib.sha256(found[entry["name"]]).hexdigest()
    assert (manifest.pop("schema"), manifest.pop("words")) == (2, "words.bin")
    del manifest["images"]
    assert manifest == HEAD


def test_parents_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    write(tmp_path / "a" / "b")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert len(content(tmp_path / "out")) == 5


@pytest.mark.parametrize("schema", [1, 2])
def test_a_directory_of_an_earlier_version_is_replaced(tmp_path: Path, schema: int) -> None:
    """Those of schema 1 were ours too; what says another number is left alone."""
    write(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest | {"schema": schema}))
    write(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest | {"schema": 3}))
    with pytest.raises(UsageError, match="name a new directory"):
        write(tmp_path / "out")


def test_its_own_directory_is_replaced(tmp_path: Path) -> None:
    """Files of more ranks than the new operation has do not stay."""
    write(tmp_path / "out", Ring(groups=((0, 1, 2, 3),), orders=((0, 1, 2, 3),)))
    assert len(content(tmp_path / "out")) == 6
    write(tmp_path / "out")
    assert len(content(tmp_path / "out")) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def a_file(path: Path) -> None:
    path.write_bytes(b"mine")


def foreign_files(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_bytes(b"mine")


def foreign_manifest(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text('{"name": "a web page"}')
    (path / "index.html").write_bytes(b"mine")


def broken_manifest(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text("{")


def own_files_and_another(path: Path) -> None:
    write(path)
    (path / "results.csv").write_bytes(b"mine")


def own_files_and_a_directory(path: Path) -> None:
    write(path)
    (path / "deeper").mkdir()


def a_link(path: Path) -> None:
    write(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "make",
    [
        a_file,
        foreign_files,
        foreign_manifest,
        broken_manifest,
        own_files_and_another,
        own_files_and_a_directory,
        a_link,
    ],
)
def test_what_is_not_ours_is_left_alone(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A file, a foreign directory, one with a manifest of its own, ours with something added, a link."""
    make(tmp_path / "out")
    before = sorted((str(path), path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="name a new directory"):
        write(tmp_path / "out")
    assert sorted((str(path), path.is_file() and path.read_bytes()) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize("old", [False, True])
def test_a_write_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, old: bool
) -> None:
    """The disk is full at the n-th file: no directory appears, and an old one stays as it was."""
    if old:
        write(tmp_path / "out", Ring(count=8))
    before = content(tmp_path / "out") if old else {}
    written, original = [0], Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        written[0] += 1
        if written[0] == number:
            original(self, data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return original(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\)"):
        write(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if old else [])
    assert (content(tmp_path / "out") if old else {}) == before


def test_an_old_directory_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out", Ring(count=8))
    before = content(tmp_path / "out")
    import os

    original = os.replace

    def fails(source: Any, target: Any) -> None:
        if Path(source).name == "new":
            raise OSError(18, "Invalid cross-device link")
        original(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(UsageError, match="Invalid cross-device link"):
        write(tmp_path / "out")
    assert content(tmp_path / "out") == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be written"):
        write(tmp_path / "file" / "out")
