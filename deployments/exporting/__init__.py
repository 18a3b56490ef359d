"""A deployment as others run it: the exact command, a compose file, a systemd unit; without its secrets. Pure."""
