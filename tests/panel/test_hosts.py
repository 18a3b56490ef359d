"""Host names: /healthz answers any, everything else names the setting."""

import pytest


def test_healthz_answers_any_host_without_a_database(client) -> None:
    """The blocked database of a test without the db fixture is the proof that none is touched."""
    response = client.get("/healthz", headers={"host": "what.ever.example"})
    assert (response.status_code, response.content) == (200, b"ok\n")
    assert "Set-Cookie" not in response.headers


async def test_healthz_in_the_async_stack(async_client) -> None:
    response = await async_client.get("/healthz", headers={"host": "what.ever.example"})
    assert (response.status_code, response.content) == (200, b"ok\n")


@pytest.mark.parametrize("path", ["/", "/healthz/", "/nowhere"])
def test_a_wrong_host_gets_a_page_that_names_the_setting(client, path: str) -> None:
    response = client.get(path, headers={"host": "evil.example"})
    assert response.status_code == 400
    assert "BERTH_ALLOWED_HOSTS" in response.content.decode()
    assert "evil.example" in response.content.decode()


def test_the_wrong_host_is_text_not_markup(client) -> None:
    response = client.get("/", headers={"host": "<script>alert(1)</script>", "accept": "text/html"})
    assert response.status_code == 400
    assert b"<script>alert" not in response.content
