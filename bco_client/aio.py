"""The asynchronous client: the same methods as :class:`bco_client.Client`, awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import anyio
import httpx

from bco_client.base_client import (
    DEFAULT_TIMEOUT,
    Asynchronous,
    BaseClient,
    Exchange,
    PosteriorHandle,
    connection,
    to_httpx,
)
from bco_client.operations import posteriors, workflows
from bco_client.options import PrescribeArguments
from bco_client.records import ContextPrescription, DriftRecord, EvaluationRecord, PosteriorRecord
from bco_client.retries import RetryOptions
from bco_client.steps import HttpRequest, Pause, Steps
from bco_client.tables import F, Row, Rows, Table

T = TypeVar("T")


class AsyncClient(BaseClient[Asynchronous, "AsyncRemotePosterior"]):
    """A connection to the service: ``async with AsyncClient() as client: await client.learn(frame, problem)``.

    Its arguments are those of :class:`bco_client.Client`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        retries: RetryOptions | None = None,
        quiet: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(**connection(base_url, api_key, timeout), transport=transport)
        super().__init__(self._http.base_url, retries, quiet)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _run(self, operation: Steps[T]) -> T:
        """Run the steps of an operation."""
        with Exchange(operation, self._retries, self._quiet) as exchange:
            outcome = None
            while (action := exchange.advance(outcome)) is not None:
                outcome = await self._perform(action)
            return exchange.result

    async def _perform(self, action: HttpRequest | Pause) -> httpx.Response | httpx.TransportError | None:
        if isinstance(action, Pause):
            await anyio.sleep(action.seconds)
            return None
        try:
            return await self._http.send(to_httpx(self._http, action))
        except httpx.TransportError as error:
            return error

    def _remote(self, posterior: PosteriorRecord) -> AsyncRemotePosterior:
        return AsyncRemotePosterior(self, posterior)


class AsyncRemotePosterior(PosteriorHandle[Asynchronous]):
    """A posterior to decide with."""

    @overload
    async def prescribe(
        self, data: Row, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]
    ) -> ContextPrescription: ...

    @overload
    async def prescribe(
        self, data: Rows, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]
    ) -> list[ContextPrescription]: ...

    @overload
    async def prescribe(self, data: F, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]) -> F: ...

    async def prescribe(self, data: Any, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]) -> Any:
        return await self._run(workflows.prescribe(self.posterior, data, batch, options))

    @overload
    async def evaluate(
        self,
        data: Row,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeArguments],
    ) -> EvaluationRecord: ...

    @overload
    async def evaluate(
        self,
        data: Table,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeArguments],
    ) -> list[EvaluationRecord]: ...

    async def evaluate(
        self,
        data: Any,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeArguments],
    ) -> Any:
        return await self._run(workflows.evaluate(self.posterior, data, alternatives, decisions, options))

    async def drift(
        self, *, dataset_id: str | None = None, source: Literal["dataset", "log"] | None = None
    ) -> DriftRecord:
        drift: DriftRecord = await self._run(posteriors.drift(self.id, dataset_id=dataset_id, source=source))
        return drift

    prescribe.__doc__ = workflows.prescribe.__doc__
    evaluate.__doc__ = workflows.evaluate.__doc__
    drift.__doc__ = posteriors.drift.__doc__
