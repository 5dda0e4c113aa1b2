"""EMIT: a schedule as the bytes a device loads. Nothing here runs them; `device` shares only the tables of `isa`."""

from rota.emit.image import pack_image, write_images
from rota.emit.program import DEFAULT_FOLDS
from rota.emit.single import emit

__all__ = ["DEFAULT_FOLDS", "emit", "pack_image", "write_images"]
