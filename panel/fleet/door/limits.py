"""What the door bounds, in one place. Sizes in bytes, times in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body: int = 32 << 20  # one request
    bodies: int = 256 << 20  # all requests whose bodies are held at one moment
    body_pause_s: float = 20.0  # between two pieces of a request body
    body_total_s: float = 120.0  # the whole request body
    connect_s: float = 3.0  # engines are on loopback, or one door away
    first_byte_s: float = 900.0  # a long answer that is not streamed has no byte before its last token
    idle_s: float = 300.0  # between two pieces of an answer
    client_stall_s: float = 300.0  # a client that takes nothing (HeadLimit ends it); its engine slot is freed then
    response_head: int = 64 << 10
    response_buffer: int = 256 << 10  # read ahead of a slow client; then the engine's socket is left alone
    idle_connections: int = 64  # kept to one engine
    # Below the 5 s after which vLLM's server closes an idle connection, so that a reused one is rarely dead.
    keep_idle_s: float = 4.0
    keep_door_s: float = 60.0  # an idle connection to another host's door, which keeps its side a little longer
    away_s: float = 2.0  # after a host's door could not be reached, others are told so at once for this long
    unheard_s: float = 5.0  # bytes to another host that nothing confirms: the way there is cut
    head_s: float = 10.0  # a client's whole request head, from its first moment
