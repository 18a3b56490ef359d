"""The panel's settings for tests: a data folder of their own, and nothing from the environment of the person testing.

Kept from the environment: DATABASE_URL and REDIS_URL (servers to test against) and BERTH_TEST_*. The folder with the
real engine (`make engine`) is TEST_ENGINE_CACHE: only tests of the real engine may know it, others install fake ones.
"""

import atexit
import os
import shutil
import tempfile

from panel.fleet.agent.provision import cache_folder

TEST_ENGINE_CACHE = cache_folder(os.environ)
for _name in [name for name in os.environ if name.startswith("BERTH_") and not name.startswith("BERTH_TEST_")]:
    del os.environ[_name]
os.environ["BERTH_DATA"] = tempfile.mkdtemp(prefix="berth-test-")
atexit.register(shutil.rmtree, os.environ["BERTH_DATA"], ignore_errors=True)

from panel.settings import *  # noqa: E402, F403

# Rows have no host that answers; tests of the check switch it on, and a whole Berth has it as people have it.
BERTH_CHECK_BEFORE_START = False

# Hashing a password the real way takes 0.1 s and 100 MiB; tests of the real way ask for it.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", *PASSWORD_HASHERS]  # noqa: F405
