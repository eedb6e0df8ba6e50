"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import httpx

from bco_client.base_client import (
    DEFAULT_TIMEOUT,
    BaseClient,
    Blocking,
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


class Client(BaseClient[Blocking, "RemotePosterior"]):
    """A connection to the service: ``with Client("http://127.0.0.1:8000") as client: client.learn(frame, problem)``.

    The address and the key default to BCO_URL and BCO_API_KEY. ``timeout`` is for each request, in seconds; ``retries``
    says how often failed requests are sent again; ``quiet`` hides progress bars.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        retries: RetryOptions | None = None,
        quiet: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**connection(base_url, api_key, timeout), transport=transport)
        super().__init__(self._http.base_url, retries, quiet)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, operation: Steps[T]) -> T:
        """Run the steps of an operation."""
        with Exchange(operation, self._retries, self._quiet) as exchange:
            outcome = None
            while (action := exchange.advance(outcome)) is not None:
                outcome = self._perform(action)
            return exchange.result

    def _perform(self, action: HttpRequest | Pause) -> httpx.Response | httpx.TransportError | None:
        if isinstance(action, Pause):
            time.sleep(action.seconds)
            return None
        try:
            return self._http.send(to_httpx(self._http, action))
        except httpx.TransportError as error:
            return error

    def _remote(self, posterior: PosteriorRecord) -> RemotePosterior:
        return RemotePosterior(self, posterior)


class RemotePosterior(PosteriorHandle[Blocking]):
    """A posterior to decide with."""

    @overload
    def prescribe(
        self, data: Row, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]
    ) -> ContextPrescription: ...

    @overload
    def prescribe(
        self, data: Rows, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]
    ) -> list[ContextPrescription]: ...

    @overload
    def prescribe(self, data: F, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]) -> F: ...

    def prescribe(self, data: Any, *, batch: bool | None = None, **options: Unpack[PrescribeArguments]) -> Any:
        return self._run(workflows.prescribe(self.posterior, data, batch, options))

    @overload
    def evaluate(
        self,
        data: Row,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeArguments],
    ) -> EvaluationRecord: ...

    @overload
    def evaluate(
        self,
        data: Table,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeArguments],
    ) -> list[EvaluationRecord]: ...

    def evaluate(
        self,
        data: Any,
        *,
        alternatives: Sequence[Mapping[str, Any]] | None = None,
        decisions: Any = None,
        **options: Unpack[PrescribeArguments],
    ) -> Any:
        return self._run(workflows.evaluate(self.posterior, data, alternatives, decisions, options))

    def drift(self, *, dataset_id: str | None = None, source: Literal["dataset", "log"] | None = None) -> DriftRecord:
        drift: DriftRecord = self._run(posteriors.drift(self.id, dataset_id=dataset_id, source=source))
        return drift

    prescribe.__doc__ = workflows.prescribe.__doc__
    evaluate.__doc__ = workflows.evaluate.__doc__
    drift.__doc__ = posteriors.drift.__doc__
