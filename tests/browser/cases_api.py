"""The readable page of the API."""

from tests.browser.cases import case


@case("api-docs", role="viewer")
def api_docs() -> str:
    return "/api/v1/docs"
