"""Models from hubs: looked up by the panel, fetched by the hosts. See docs/downloads.md."""
