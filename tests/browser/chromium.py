"""The system's Chromium and how it is started: apart from conftest.py, since the benchmarks use it without Django."""

import os
import shutil

CHROMIUM = os.environ.get("BERTH_TEST_CHROMIUM") or next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-dev-shm-usage",
]
