"""The proxy with TLS in front of a panel, as small as can be: it takes the cover off and hands the bytes on.

python -m tests.fakes.front ADDRESS PORT PANEL_PORT CERTIFICATE KEY
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(address: str, port: int, panel: int, certificate: str, key: str) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            behind, to_panel = await asyncio.open_connection("127.0.0.1", panel)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pipe(reader, to_panel), _pipe(behind, writer))

    server = await asyncio.start_server(take, address, port, ssl=tls)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]))
