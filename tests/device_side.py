"""The device's side of a comparison in a process of its own: directories of images in, arrays of outputs out.

    python -m tests.device_side DIRECTORY

Every directory in DIRECTORY holds what `write_images` wrote and `inputs.npy`, bytes of shape (ranks, input); beside it
is put `outputs.npy`, or `error.txt` with what the device says.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rota.device.model import load
from rota.errors import RotaError
from rota.frontends.image_directory import read_image_directory


def run_directory(directory: Path) -> None:
    """Run the images of one directory on its inputs."""
    try:
        device = load(read_image_directory(directory / "images").images)
        np.save(directory / "outputs.npy", device.run(np.load(directory / "inputs.npy")))
    except RotaError as error:
        (directory / "error.txt").write_text(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    for each in sorted(Path(sys.argv[1]).iterdir()):
        run_directory(each)
