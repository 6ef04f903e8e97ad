"""What all tests share: one thread for each process, and the data sets where there are any."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("shared", deadline=None)  # the machine may be busy with other things
settings.load_profile("shared")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of data sets that the clone does not hold."""
    folder = os.environ.get("STAKES_DATA")
    if not folder:
        pytest.skip("needs the data sets: set STAKES_DATA to their folder")
    return Path(folder)
