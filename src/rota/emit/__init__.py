"""EMIT: a schedule as the bytes a device loads. Nothing here runs them; `device` shares only the tables of `isa`."""

from rota.emit.image import DEFAULT_FOLDS, emit, pack_image, write_images

__all__ = ["DEFAULT_FOLDS", "emit", "pack_image", "write_images"]
