"""Host names: a wrong one gets a page that names the setting."""

import pytest


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
