"""The ground the other tests stand on."""

import os
import socket
import subprocess
import sys

import pytest
from django.conf import settings
from django.db import connection

from tests.conftest import NetworkBlocked
from tests.servers import Servers


@pytest.mark.django_db
def test_database_is_the_servers_own_and_no_superuser(servers: Servers) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database(), rolsuper FROM pg_roles WHERE rolname = current_user")
        name, superuser = cursor.fetchone()
    assert name.startswith("test_")
    if servers.embedded is not None:
        assert not superuser


def test_broker_is_empty_and_answers(broker) -> None:
    assert broker.ping()
    assert broker.keys() == [b"berth:fleet:since"]  # what a broker that has run for long holds


@pytest.mark.django_db
def test_a_child_process_finds_the_same_database(servers: Servers, tmp_path) -> None:
    code = (
        "import django; django.setup(); from django.db import connection as c; "
        "c.ensure_connection(); print(c.settings_dict['NAME'])"
    )
    env = servers.environment(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == settings.DATABASES["default"]["NAME"]


def test_no_way_out() -> None:
    with pytest.raises(NetworkBlocked), socket.socket() as outside:
        outside.connect(("192.0.2.1", 80))
    with pytest.raises(NetworkBlocked):
        socket.getaddrinfo("example.org", 443)


def test_data_folder_is_not_the_checkouts() -> None:
    assert not str(settings.BERTH_DATA).startswith(os.getcwd())  # noqa: PTH109
