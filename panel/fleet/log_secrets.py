"""What a job was given in secret does not get into its stored log, if the program writes it there.

Bytes are replaced by as many stars: a log is addressed by its offsets, which stay true.
"""

import json
from collections.abc import Iterable

from panel.core.crypto import CannotUnseal, unseal
from panel.fleet.models import Job

SHORTEST = 8  # bytes; what is shorter is found in innocent words too
LONGEST_PART = 256  # bytes of a secret that are looked for at the ends of a chunk, where it may have been cut


def hidden(job: Job, data: bytes) -> bytes:
    """The chunk without the secrets of this job; a secret that was cut in two by the end of a chunk counts as well."""
    if not job.secrets or not data:
        return data
    try:
        values = json.loads(unseal(job.secrets)).values()
    except CannotUnseal:  # the log must go on
        return data
    return without(data, (str(value).encode() for value in values))


def without(data: bytes, secrets: Iterable[bytes]) -> bytes:
    for secret in secrets:
        if len(secret) < SHORTEST:
            continue
        data = data.replace(secret, b"*" * len(secret))
        for length in range(min(len(secret) - 1, LONGEST_PART), SHORTEST - 1, -1):
            if data.endswith(secret[:length]):
                data = data[:-length] + b"*" * length
                break
        for length in range(min(len(secret) - 1, LONGEST_PART), SHORTEST - 1, -1):
            if data.startswith(secret[-length:]):
                data = b"*" * length + data[length:]
                break
    return data
