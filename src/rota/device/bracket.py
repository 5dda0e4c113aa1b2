"""The barrier around a program: every rank of the device meets all others before it starts, and when it has ended.

What each rank does is in the 296 bytes of the program block of its home stream processor: the device's view, which
`barrier` runs from its descriptors, or the host's, in which the host starts all ranks together. Source: barrier §8.1.
"""

from __future__ import annotations

from typing import Final

from rota.device.barrier import BarrierDevice, load_barriers
from rota.device.load import Image, of_rank
from rota.device.world import World
from rota.errors import DecodeError
from rota.isa.barrier_records import CONFIG, FEEDS, HOME_SP, HOST_VIEW, RING_END, BarrierImage
from rota.isa.config import CONFIGURATIONS, PROGRAM_BLOCK
from rota.isa.image import Section
from rota.isa.semaphores import STRIDE, Reserved, Window

_PLACE: Final = next(each.at for each in PROGRAM_BLOCK.fields if each.name == "barrier_configs")


def read_bracket(world: World) -> BarrierDevice | None:
    """Return the barrier that the images hold; None where the host does it, or there is none.

    Raises:
        DecodeError: ranks that do not agree on who does it, or bytes that no emitter means.
    """
    configs: list[bytes] = []
    kinds: list[str] = []
    for index, image in enumerate(world.images):
        with of_rank(index):
            config, offset = _config(image, HOME_SP)
            for sp in range(world.sps):
                other, place = _config(image, sp)
                if sp != HOME_SP and any(other):
                    expected = f"a barrier on TOP_SP {HOME_SP} alone"
                    raise DecodeError("barrier configuration", offset=place, expected=expected, got=f"TOP_SP {sp}")
            page = image.parts.get((Section.MEM, FEEDS))
            kind = "device" if config[-4] & 1 else "host" if any(config) else "none"
            if (page is not None) != (kind == "device"):
                expected = "a page of descriptors exactly where the device runs the barrier"
                raise DecodeError("barrier configuration", offset=offset, expected=expected, got=f"the {kind} view")
            if kinds and kind != kinds[0]:
                raise DecodeError(
                    "barrier configuration", offset=offset, expected=f"the {kinds[0]} view, as rank 0 has", got=kind
                )
            if kind == "host":
                _check_host(world, index, config, offset)
            configs.append(config)
            kinds.append(kind)
    if kinds[0] != "device":
        return None
    return load_barriers([_image(world, index, config) for index, config in enumerate(configs)])


def _config(image: Image, sp: int) -> tuple[bytes, int]:
    part = image.part(Section.CONF, sp)
    at = CONFIGURATIONS[image.arch.name].part("program").at + _PLACE
    return bytes(part.data[at : at + CONFIG.size]), part.offset + at


def _check_host(world: World, index: int, config: bytes, offset: int) -> None:
    image, arch = world.images[index], world.arch
    block = arch.semaphores(image.lane * world.sps + HOME_SP)
    want = HOST_VIEW.encode(
        barrier_start=arch.memory(image.lane * world.lnc) + FEEDS,
        barrier_done=block + int(Window.READ) + int(Reserved.HOST_BARRIER_DONE) * STRIDE,
    ).ljust(CONFIG.size, b"\0")
    for at, (one, other) in enumerate(zip(want, config, strict=True)):
        if one != other:
            raise DecodeError("host view of the barrier", offset=offset + at, expected=hex(one), got=hex(other))


def _image(world: World, index: int, config: bytes) -> BarrierImage:
    image = world.images[index]
    page = bytes(image.part(Section.MEM, FEEDS).data)
    return BarrierImage(
        arch=image.arch.name,
        rank=image.rank,
        chip=image.chip,
        lane=image.lane,
        lnc=image.lnc,
        config=config,
        page=(bytes(FEEDS) + page).ljust(RING_END, b"\0"),
    )
