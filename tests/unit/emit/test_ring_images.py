"""Images of rings have not moved: what stands in them, but for META and device ids, by its digest.

The digests were taken from the emitter that knew rings alone, which stood before event lists and whole programs, and
whose bytes were checked rule by rule in `test_packets`, `test_programs` and `test_addresses`.
"""

from __future__ import annotations

import hashlib

import pytest
from tests.images import TRN1, Ring, section, table

from rota.isa.config import CONFIGURATIONS
from rota.isa.dtypes import Dtype
from rota.isa.enums import CceType, EncOp
from rota.isa.image import Section

AG, RS = EncOp.ALLGATHER, EncOp.REDUCE_SCATTER
THREE, FIVE = ((0, 1, 2),), ((0, 1, 2), (2, 1, 0)) * 2 + ((1, 0, 2),)
RINGS = {
    "two channels": Ring(),
    "one element": Ring(count=1),
    "in place": Ring(in_place=True),
    "many chunks": Ring(count=3 * 5000, chunk=192, slots=5),
    "one fold, one half": Ring(folds=1, halves=1),
    "sixteen folds, fp32": Ring(folds=16, dtype=Dtype.FP32, count=3 * 700),
    "five channels, max": Ring(orders=FIVE, op=CceType.MAX),
    "an all-gather": Ring(kind=AG, count=3 * 700),
    "a reduce-scatter, fp8": Ring(kind=RS, count=3 * 700, dtype=Dtype.FP8_EXP4),
    "trn1": Ring(platform_name=TRN1, groups=THREE, count=3 * 700),
    "an all-gather of trn1": Ring(platform_name=TRN1, groups=THREE, kind=AG, count=3 * 100, folds=3),
    "two groups": Ring(groups=((0, 1, 4), (8, 12, 9)), orders=(((0, 1, 2), (2, 0, 1)), ((2, 1, 0), (0, 1, 2)))),
}
DIGESTS = {
    "two channels": "c8f10e5d699e968b",
    "one element": "ecebf3bb9cffb15b",
    "in place": "1550201c87f2f8af",
    "many chunks": "8ba884457b12de23",
    "one fold, one half": "7675eaea83cce043",
    "sixteen folds, fp32": "8da6f9716295b6c3",
    "five channels, max": "901d07dbf1505dd6",
    "an all-gather": "a68d541827b08e8c",
    "a reduce-scatter, fp8": "f7bb8f67f18027ea",
    "trn1": "9938f76ac885708f",
    "an all-gather of trn1": "78a0f96e7d13647d",
    "two groups": "dc5e1018a8cd2fca",
}


def digest(ring: Ring) -> str:
    """Return the SHA-256 of all sections but META of all ranks, each with its kind, index and size; device ids as 0."""
    found = hashlib.sha256()
    for image in ring.images:
        for kind, index in sorted(table(image)):
            if kind is not Section.META:
                data = section(image, kind, index)
                if kind is Section.CONF:
                    part = next(each for each in CONFIGURATIONS.values() if each.size == len(data)).part("device_ids")
                    data = data[: part.at] + bytes(part.layout.size) + data[part.end :]
                found.update(f"{kind.name} {index} {len(data)};".encode() + data)
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", RINGS)
def test_the_image_of_a_ring_is_what_it_was(name: str) -> None:
    """Descriptors, slot programs, records, presets, feed words, buffers and words, byte for byte."""
    assert digest(RINGS[name]) == DIGESTS[name]
