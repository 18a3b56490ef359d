"""What a browser calls itself, in words that its owner recognises; guesses nothing that is not there."""

from django.utils.translation import gettext as _

# Order matters: Edge and Opera call themselves Chrome too, Chrome calls itself Safari.
_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("CriOS/", "Chrome"),
    ("Chromium/", "Chromium"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
)
# Android calls itself Linux too, an iPhone mentions Mac OS.
_SYSTEMS = (
    ("Windows", "Windows"),
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iPadOS"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)


def in_words(agent: str) -> str:
    """ "Firefox on Linux", "Safari", or that it is not known."""
    browser = next((word for sign, word in _BROWSERS if sign in agent), "")
    system = next((word for sign, word in _SYSTEMS if sign in agent), "")
    if browser and system:
        return _("%(browser)s on %(system)s") % {"browser": browser, "system": system}
    return browser or system or _("A browser that does not say its name")
