"""The outside of a NEFF: header rules, hashes, compression, and an archive that may be hostile."""

from __future__ import annotations

import gzip
import tarfile
import tracemalloc

import pytest
from tests.neffs import Entry, container, entry, files, pack, tar, wrap

from rota.errors import DecodeError, RotaError, UnsupportedError, UsageError
from rota.frontends.neff import is_neff, read_neff
from rota.frontends.neff_archive import Caps


def fixture(*more: Entry) -> list[Entry]:
    return [*(entry(name, body) for name, body in files().items()), *more]


def sealed(archive: bytearray, block: int) -> bytes:
    """Return an archive with the sum of one block made right."""
    archive[block + 148 : block + 156] = b" " * 8
    archive[block + 148 : block + 156] = b"%06o\0 " % sum(archive[block : block + 512])
    return bytes(archive)


def test_kinds_of_bytes() -> None:
    """A NEFF of whatever version is told by its first two fields, even when the rest is missing."""
    assert is_neff(container())
    assert is_neff(container()[:16])
    assert is_neff(wrap(b"", pkg=9))
    assert not is_neff(container()[:15])
    assert not is_neff(b"\xc8\x10" + bytes(6) + b"\x00\x04" + bytes(6))
    assert not is_neff(b"")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"pkg": 0}, r"package version 0, .*\(code 10\)"),
        ({"pkg": 3}, r"package version 3, expected 1 or 2 \(code 10\)"),
        ({"major": 3}, r"format version 3, expected at most 2 \(code 10\)"),
        ({"features": 1 << 27}, r"feature bits 0x8000000 are set, .*\(code 10\)"),
        ({"features": 1 << 62 | 1}, r"feature bits 0x4000000000000000 are set"),
    ],
)
def test_unknown_versions_and_features(fields: dict[str, int], says: str) -> None:
    """Package versions but 1 and 2, majors above 2, and any of bits 27 to 62 are refused with code 10."""
    with pytest.raises(UnsupportedError, match=says):
        read_neff(container(**fields))


@pytest.mark.parametrize(
    "fields", [{"features": 1 << 22}, {"features": 1 << 63}, {"features": 1 << 40, "major": 1}, {"major": 0}]
)
def test_known_features(fields: dict[str, int]) -> None:
    """Bits below 27 and bit 63 pass, and before major version 2 nothing is looked at."""
    assert read_neff(container(**fields)).header["feature_bits"] == fields.get("features", 0)


@pytest.mark.parametrize(("fields", "offset"), [({"header_size": 1023}, 8), ({"core": 0}, 0x228), ({"core": 3}, 0x228)])
def test_wrong_numbers_in_the_header(fields: dict[str, int], offset: int) -> None:
    """The header has 1024 bytes, and a logical core one or two physical ones."""
    with pytest.raises(DecodeError) as caught:
        read_neff(container(**fields))
    assert caught.value.offset == offset


def test_an_archive_larger_than_the_file() -> None:
    """`data_size` is at most what is behind the header; anything else is code 2."""
    archive = tar(fixture())
    with pytest.raises(DecodeError, match=r"\(code 2\) at offset 16: expected at most the \d+ bytes"):
        read_neff(pack(archive, pkg=1, data_size=len(archive) + 1))


def test_bytes_behind_the_archive_are_not_looked_at() -> None:
    """`data_size` may be less than what is there."""
    assert read_neff(container() + b"signature").members == read_neff(container()).members


@pytest.mark.parametrize("pkg", [1, 2])
def test_every_byte_of_archive_and_hash_is_covered(pkg: int) -> None:
    """One other bit in the archive or in the hash, its filler included, is refused."""
    data = container(pkg=pkg)
    for at in [0xAC, 0xAC + 15, 0xAC + 16, 0xAC + 31, 1024, 1024 + 300, len(data) - 1]:
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises(DecodeError, match="of the archive at offset 172"):
            read_neff(bytes(damaged))


@pytest.mark.parametrize("pkg", [1, 2])
def test_every_truncation_is_refused(pkg: int) -> None:
    """A file that ends early, wherever, is one sentence."""
    data = container(pkg=pkg)
    for end in {*range(16, len(data), 101), len(data) - 1}:
        with pytest.raises(DecodeError):
            read_neff(data[:end])


def test_every_truncation_under_a_right_hash_is_refused() -> None:
    """An archive that ends before its end mark, or gzip data that ends early, is refused though the hash is right."""
    archive = tar(fixture())
    end = len(archive.rstrip(b"\0"))
    for cut in {*range(0, end, 97), end}:
        with pytest.raises(RotaError):
            read_neff(pack(archive[:cut], pkg=1))
    packed = gzip.compress(archive, mtime=0)
    for cut in {*range(0, len(packed), 13), len(packed) - 1}:
        with pytest.raises(DecodeError):
            read_neff(wrap(packed[:cut]))


@pytest.mark.parametrize("stray", [b"\0", b"more", gzip.compress(b"more", mtime=0)])
def test_nothing_follows_the_gzip_data(stray: bytes) -> None:
    """The archive is one gzip member and nothing else."""
    with pytest.raises(DecodeError, match=f"expected its end, got {len(stray)} more bytes"):
        read_neff(wrap(gzip.compress(tar(fixture()), mtime=0) + stray))


def test_no_gzip_data() -> None:
    """Package version 2 is gzip data."""
    with pytest.raises(DecodeError, match="expected gzip data"):
        read_neff(wrap(tar(fixture())))


def test_a_bomb_stops_at_the_limit() -> None:
    """Data that grows a thousandfold is refused at the limit, and takes no more memory than twice that and a piece."""
    bomb = wrap(gzip.compress(bytes(64 << 20), 9, mtime=0))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="larger than 1048576 bytes unpacked"):
            read_neff(bomb, caps=Caps(archive=1 << 20))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_plain_archive_has_the_same_limit() -> None:
    """Package version 1 is limited as well."""
    with pytest.raises(UsageError, match="larger than 1000 bytes"):
        read_neff(container(pkg=1), caps=Caps(archive=1000))


def test_the_number_of_members_is_limited() -> None:
    """Directories count too."""
    many = pack(tar(fixture(*(entry(f"d{i}", kind=tarfile.DIRTYPE) for i in range(20)))))
    with pytest.raises(UsageError, match="more than 30 members"):
        read_neff(many, caps=Caps(members=30))
    assert len(read_neff(many).members) == len(files())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("/etc/passwd", "no plain path"),
        ("../up", "no plain path"),
        ("sg00/../../up", "no plain path"),
        ("sg00/./x", "no plain path"),
        ("sg00//x", "no plain path"),
        ("..", "no plain path"),
        ("c:\\x", "no plain path"),
        ("a\nb", r"'a\?b' is no plain path"),
        ("a\x1b[2Jb", r"'a\?\[2Jb' is no plain path"),
        ("a\u202eb", "no plain path"),
        ("", "no plain path"),
        ("sg00/x/", "no plain path"),
        ("a/b/c/d/e/f/g/h/i", "9 names deep, expected at most 8"),
        ("./kelf-a.json", "'kelf-a.json' is there twice"),
    ],
)
def test_path_tricks(name: str, says: str) -> None:
    """A member's path stays inside, is not too deep, is printable, and is there once."""
    with pytest.raises(UsageError, match=says) as caught:
        read_neff(pack(tar(fixture(entry(name, b"x")))), where="x.neff")
    assert str(caught.value).isprintable()


def test_a_name_that_is_no_text() -> None:
    """A name that is no UTF-8 is no plain path."""
    member = entry("q" * 8, b"x")
    archive = bytearray(tar([member]))
    archive[0] = 0xFF
    with pytest.raises(UsageError, match="no plain path"):
        read_neff(pack(sealed(archive, 0)))


def test_a_path_trick_of_a_directory() -> None:
    """Directories are passed over, and a path that leads out is refused all the same."""
    with pytest.raises(UsageError, match="no plain path"):
        read_neff(pack(tar(fixture(entry("../up", kind=tarfile.DIRTYPE)))))


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE,
        tarfile.GNUTYPE_SPARSE, b"M", b"V", b"\xff",
    ],
)  # fmt: skip
def test_only_files_and_directories(kind: bytes) -> None:
    """Links, devices, sparse files and whatever else are refused."""
    with pytest.raises(UsageError, match=r"member 'odd' is of type '.', expected a file or a directory"):
        read_neff(pack(tar(fixture(entry("odd", kind=kind, link="kelf-a.json")))))


def test_a_leading_dot_and_directories_are_tolerated() -> None:
    """`./` before every name, the directory `./` itself, and `sg00/` change nothing."""
    dotted = [entry("./", kind=tarfile.DIRTYPE), entry("./sg00/", kind=tarfile.DIRTYPE)]
    dotted += [entry(f"./{name}", body) for name, body in files().items()]
    assert read_neff(pack(tar(dotted))).members == read_neff(container()).members


def test_long_names_and_dialects() -> None:
    """GNU's long names are read; a POSIX archive too, with extended headers that neither rename nor resize."""
    long = "w/" + "n" * 200
    assert long in read_neff(pack(tar(fixture(entry(long))))).members
    deep = "w/" * 6 + "p" * 90
    assert deep in read_neff(pack(tar(fixture(entry(deep)), dialect=tarfile.USTAR_FORMAT))).members
    timed = fixture()
    timed[0][0].mtime = 1.5  # takes an extended header
    archive = tar(timed, dialect=tarfile.PAX_FORMAT)
    assert b" mtime=1.5\n" in archive
    assert read_neff(pack(archive)).members == read_neff(container()).members


def test_renaming_headers_are_refused() -> None:
    """An extended header may not say another path or size."""
    with pytest.raises(UsageError, match="is of type 'x'"):
        read_neff(pack(tar(fixture(entry("é" * 120)), dialect=tarfile.PAX_FORMAT)))
    body = b"13 size=9999\n"
    with pytest.raises(UsageError, match="is of type 'x'"):
        read_neff(pack(tar([entry("h", body, kind=b"x"), *fixture()])))
    endless = entry("h", b"n" * 5000, kind=b"L")
    with pytest.raises(UsageError, match="is of type 'L'"):
        read_neff(pack(tar([endless, *fixture()])))


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (257, b"xxxxxxxx", "expected a tar block, got magic"),
        (124, b"99999999999\0", "size of a member at offset 124: expected an octal number"),
        (124, b"\x80" + bytes(10) + b"\x01", "expected an octal number"),
        (124, b"-0000000001\0", "expected an octal number"),
        (124, b"77777777777\0", r"member in the archive at offset 0: expected \d+ bytes"),
    ],
)
def test_damaged_blocks(at: int, value: bytes, says: str) -> None:
    """A block with another magic, or a size that is no octal number or more than there is, is named."""
    archive = bytearray(tar(fixture()))
    archive[at : at + len(value)] = value
    with pytest.raises(DecodeError, match=says):
        read_neff(pack(sealed(archive, 0)))


def test_a_wrong_sum() -> None:
    """The sum of a block is compared."""
    archive = bytearray(tar(fixture()))
    archive[100] ^= 1
    with pytest.raises(DecodeError, match="sum of a tar block at offset 148"):
        read_neff(pack(bytes(archive)))


def test_nothing_behind_the_end_mark() -> None:
    """Members behind the end mark would be seen by some readers only; they are refused."""
    with pytest.raises(DecodeError, match="expected nothing behind the end mark"):
        read_neff(pack(tar(fixture()) + tar([entry("hidden", b"x")])))
