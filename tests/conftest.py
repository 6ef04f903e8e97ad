"""What all tests share: one thread for each process, the data sets where there are any, and a browser for pages."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# Virtual machines may announce AMX and not allow it: bfloat16 then ends the process, in plain PyTorch too.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
settings.register_profile("shared", deadline=None)  # the machine may be busy with other things
settings.load_profile("shared")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of data sets that the clone does not hold."""
    folder = os.environ.get("STAKES_DATA")
    if not folder:
        pytest.skip("needs the data sets: set STAKES_DATA to their folder")
    return Path(folder)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright to drive a browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # Without a sandbox: containers, where tests run as root, have none to offer.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file; at the end nothing may have been asked for but the file, nor any error been said."""
    complaints: list[str] = []
    contexts = []

    def open_page(file: Path, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("request", lambda request: complaints.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
