"""The people and browsers of the accounts' tests."""

from tests.accounts.conftest import _home, browser, people

__all__ = ["_home", "browser", "people"]
