"""The API as a process of its own."""

from __future__ import annotations

import socket

import typer
import uvicorn

from app.commands.serve import DRAIN_SECONDS, url
from app.main import create_app
from app.settings import Settings

# Longer than clients and proxies keep a connection, so that none is closed just as they use it again.
KEEP_ALIVE_SECONDS = 75


class Server(uvicorn.Server):
    """Says where it listens as soon as it does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            address = url(self.config.host, self.config.port)
            typer.echo(f"The API listens at {address}; its docs page, to try things out, is {address}/docs")


def run(settings: Settings) -> bool:
    """Serve until told to stop; False if it could not even start. SIGTERM lets open requests finish first."""
    application = create_app()
    server = Server(
        uvicorn.Config(
            application,
            host=settings.host,
            port=settings.port,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    # Clients that follow a job would otherwise keep the process open until the job ends.
    application.state.stopping = lambda: server.should_exit
    # Its imports take seconds, which the first call that needs it should not have to wait for.
    application.state.solvers.start()
    server.run()
    return server.started
