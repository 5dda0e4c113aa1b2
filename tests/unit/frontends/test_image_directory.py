"""Directories of images: what `write_images` wrote is read back, and whatever is wrong with it names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.images import Ring

from rota.emit import write_images
from rota.errors import UsageError
from rota.frontends.image_directory import is_image_directory, read_image_directory

RING = Ring(groups=((2, 5, 9),))
HEAD = {"platform": "trn2.48xlarge", "seed": 3}
Manifest = dict[str, Any]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_images(tmp_path / "out", RING.images, RING.request.members, head=HEAD, words=b"words")
    return tmp_path / "out"


def change(directory: Path, how: Callable[[Manifest], Any]) -> None:
    """Change the manifest; what `how` returns, if anything, takes its place."""
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    new = how(manifest)
    path.write_text(json.dumps(manifest if new is None else new))


def refused(directory: Path, file: str, *words: str) -> None:
    """The only complaint is one sentence that begins with the path of the file."""
    with pytest.raises(UsageError) as caught:
        read_image_directory(directory)
    text = str(caught.value)
    assert text.startswith(f"{directory / file}: ")
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_what_was_written_is_read(directory: Path) -> None:
    """Images in order, the machine rank of each, and all that the manifest says."""
    found = read_image_directory(directory)
    assert (found.path, found.images, found.ranks) == (directory, RING.images, (2, 5, 9))
    assert {name: found.head[name] for name in HEAD} == HEAD


def test_a_directory_with_a_manifest_is_one_of_images(directory: Path, tmp_path: Path) -> None:
    """Not a file, not a path that is not there, not a directory without."""
    assert is_image_directory(directory)
    assert not is_image_directory(directory / "manifest.json")
    assert not is_image_directory(tmp_path / "missing")
    assert not is_image_directory(tmp_path)


@pytest.mark.parametrize("name", ["rank-000.img", "rank-002.img", "manifest.json"])
def test_a_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    refused(directory, name, "cannot be read (No such file or directory)", "rota lower -o")


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: data[:0]])
def test_an_image_of_another_size_is_named(directory: Path, damage: Callable[[bytes], bytes]) -> None:
    """Cut short, too long, empty: both sizes are said."""
    path = directory / "rank-001.img"
    data = damage(path.read_bytes())
    path.write_bytes(data)
    refused(directory, "rank-001.img", f"{len(RING.images[1])} bytes", f"got {len(data)} bytes", "lower it again")


@given(at=st.integers(0, len(RING.images[2]) - 1), bit=st.integers(0, 7))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_bit_is_found(directory: Path, at: int, bit: int) -> None:
    """Anywhere in an image: the digest is that of the manifest, not the image's own."""
    data = bytearray(RING.images[2])
    data[at] ^= 1 << bit
    (directory / "rank-002.img").write_bytes(data)
    refused(directory, "rank-002.img", "SHA-256")
    (directory / "rank-002.img").write_bytes(RING.images[2])
    assert read_image_directory(directory).images == RING.images


def test_images_that_changed_places_are_found(directory: Path) -> None:
    """Each is another file's content."""
    one, other = directory / "rank-000.img", directory / "rank-001.img"
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)
    refused(directory, "rank-000.img", "is not what the manifest says")


@pytest.mark.parametrize("schema", [1, 3, "2", None])
def test_another_schema_is_refused(directory: Path, schema: Any) -> None:
    """Schema 1 had one collective a directory."""
    change(directory, lambda manifest: manifest.update(schema=schema))
    refused(directory, "manifest.json", f"schema {schema}, expected 2", "lower it again")


def put(value: Any) -> Callable[[Manifest], Any]:
    """Return what puts a value in the place of the manifest."""
    return lambda _: value


BROKEN: dict[str, Any] = {
    "a list": lambda manifest: [manifest],
    "a number": put(7),
    "no schema": lambda manifest: {"images": manifest["images"]},
    "no images": put({"schema": 2}),
    "images that are none": put({"schema": 2, "images": [1, 2]}),
    "no name": put({"schema": 2, "images": [{"rank": 0, "size": 1, "sha256": ""}]}),
    "a size that is no number": lambda manifest: manifest["images"][0].update(size="many"),
    "an infinite size": lambda manifest: manifest["images"][1].update(size=float("inf")),
    "a rank that is a list": lambda manifest: manifest["images"][1].update(rank=[]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_manifest_that_is_none(directory: Path, name: str) -> None:
    change(directory, BROKEN[name])
    refused(directory, "manifest.json", "is no manifest of `rota lower`")


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"schema": 2, "images": {"a": 1}}'])
def test_a_manifest_that_is_no_json(directory: Path, data: bytes) -> None:
    (directory / "manifest.json").write_bytes(data)
    refused(directory, "manifest.json", "is no manifest of `rota lower`")


@pytest.mark.parametrize("name", ["../rank-000.img", "/etc/hostname", "deeper/rank-000.img", ""])
def test_images_are_files_of_the_directory(directory: Path, name: str) -> None:
    """A manifest does not lead out of it."""
    change(directory, lambda manifest: manifest["images"][0].update(name=name))
    with pytest.raises(UsageError, match=r"each a file of this directory|cannot be read"):
        read_image_directory(directory)


def test_no_images_are_refused(directory: Path) -> None:
    change(directory, lambda manifest: manifest.update(images=[]))
    refused(directory, "manifest.json", "expected at least one image")


@pytest.mark.parametrize("rank", [5, -1])
def test_each_image_is_of_a_rank_of_its_own(directory: Path, rank: int) -> None:
    change(directory, lambda manifest: manifest["images"][0].update(rank=rank))
    refused(directory, "manifest.json", "each image to be of a rank of its own")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["schema", "images", "name", "rank", "size", "sha256"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(value=JSON, raw=st.binary(max_size=20))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_manifest_is_read_or_refused(directory: Path, value: Any, raw: bytes) -> None:
    """Whatever stands there, the complaint is ours and names a file."""
    for data in (json.dumps(value).encode(), json.dumps({"schema": 2, "images": value}).encode(), raw):
        (directory / "manifest.json").write_bytes(data)
        with pytest.raises(UsageError, match=str(directory)):
            read_image_directory(directory)
