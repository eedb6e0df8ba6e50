"""Code shared by the blocking and the asynchronous client: the connection, operations as methods, and resources.

An operation (:mod:`bco_client.operations`) is written once, as steps. :class:`Operation` makes it a method: with a
``Blocking`` client it returns the result, with an ``Asynchronous`` one a coroutine of it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine
from functools import cache, wraps
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

import httpx

from bco_client.operations import aliases, datasets, jobs, posteriors, prescriptions, problems, workflows
from bco_client.progress import make_bar
from bco_client.records import PosteriorRecord
from bco_client.retries import RetryOptions, with_retries
from bco_client.steps import HttpRequest, JobProgress, Pause, Steps

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8000"
# A prescription may take a minute; so may an upload.
DEFAULT_TIMEOUT = 120.0


class Blocking:
    """Marks objects whose operations return their results."""


class Asynchronous:
    """Marks objects whose operations are awaited."""


Mode = TypeVar("Mode")
# A posterior to decide with: blocking or asynchronous.
Remote = TypeVar("Remote")


class Runner(Generic[Mode]):
    """An object that runs operations, by itself or by a client."""

    _run: Any


class Operation(Generic[P, T]):
    """An operation as a method, with the operation's arguments and docstring."""

    def __init__(self, steps: Callable[P, Steps[T]]) -> None:
        self.steps = steps

    @overload
    def __get__(self, instance: Runner[Blocking], owner: type) -> Callable[P, T]: ...

    @overload
    def __get__(self, instance: Runner[Asynchronous], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Any]: ...

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        asynchronous = inspect.iscoroutinefunction(getattr(instance or owner, "_run", None))
        method = _method(self.steps, asynchronous, isinstance(self, PosteriorOperation))
        return method if instance is None else MethodType(method, instance)


class PosteriorOperation(Operation[P, PosteriorRecord]):
    """An operation that returns a posterior to decide with."""

    @overload  # type: ignore[override]
    def __get__(self, instance: BaseClient[Blocking, Remote], owner: type) -> Callable[P, Remote]: ...

    @overload
    def __get__(
        self, instance: BaseClient[Asynchronous, Remote], owner: type
    ) -> Callable[P, Coroutine[Any, Any, Remote]]: ...

    @overload
    def __get__(self, instance: None, owner: type) -> Callable[..., Any]: ...

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        return super().__get__(instance, owner)


@cache
def _method(steps: Callable[..., Steps[Any]], asynchronous: bool, remote: bool) -> Callable[..., Any]:
    if asynchronous:

        @wraps(steps)
        async def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = await self._run(steps(*args, **kwargs))
            return self._remote(result) if remote else result
    else:

        @wraps(steps)
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = self._run(steps(*args, **kwargs))
            return self._remote(result) if remote else result

    # ``help`` and editors show the operation's signature, with the result in place of the steps.
    signature = inspect.signature(steps)
    result = str(signature.return_annotation).removeprefix("Steps[").removesuffix("]")
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *signature.parameters.values()]
    method.__signature__ = signature.replace(parameters=parameters, return_annotation=result)  # type: ignore[attr-defined]
    return method


class ClientResource(Runner[Mode]):
    """One kind of object of the service, with its operations."""

    def __init__(self, client: Any) -> None:
        self._run = client._run


class Datasets(ClientResource[Mode]):
    """Histories of contexts and outcomes."""

    create = Operation(datasets.create)
    append = Operation(datasets.append)
    get = Operation(datasets.read)
    rows = Operation(datasets.rows)
    list = Operation(datasets.list_all)
    delete = Operation(datasets.remove)


class Problems(ClientResource[Mode]):
    """Decision problems."""

    create = Operation(problems.create)
    import_model = Operation(problems.import_model)
    mps = Operation(problems.mps)
    mps_description = Operation(problems.mps_description)
    get = Operation(problems.read)
    list = Operation(problems.list_all)
    delete = Operation(problems.remove)


class Jobs(ClientResource[Mode]):
    """Jobs: learning, batches and backtests."""

    create = Operation(jobs.create)
    learn = Operation(jobs.learn)
    prescribe = Operation(jobs.prescribe)
    get = Operation(jobs.read_job)
    list = Operation(jobs.list_all)
    wait = Operation(jobs.wait)
    cancel = Operation(jobs.cancel)
    retry = Operation(jobs.retry)
    log = Operation(jobs.log)
    result = Operation(jobs.result)
    file = Operation(jobs.file)
    delete = Operation(jobs.remove)


class Posteriors(ClientResource[Mode]):
    """Learned posteriors."""

    get = Operation(posteriors.read)
    list = Operation(posteriors.list_all)
    diagnostics = Operation(posteriors.diagnostics)
    particles = Operation(posteriors.particles)
    drift = Operation(posteriors.drift)
    prescribe = Operation(posteriors.prescribe)
    evaluate = Operation(posteriors.evaluate)
    delete = Operation(posteriors.remove)


class Aliases(ClientResource[Mode]):
    """Aliases: names of your own for posteriors."""

    move = Operation(aliases.move)
    get = Operation(aliases.read)
    list = Operation(aliases.list_all)
    moves = Operation(aliases.moves)
    delete = Operation(aliases.remove)


class Prescriptions(ClientResource[Mode]):
    """The log of prescribe and evaluate calls, and the outcomes recorded for them."""

    list = Operation(prescriptions.list_all)
    get = Operation(prescriptions.read)
    record_outcome = Operation(prescriptions.record_outcome)
    reproduce = Operation(prescriptions.reproduce)
    export = Operation(prescriptions.export)


class BaseClient(Runner[Mode], Generic[Mode, Remote]):
    """Resources of both clients, and operations that involve several of them."""

    learn = PosteriorOperation(workflows.learn)
    load = PosteriorOperation(posteriors.read)
    backtest = Operation(workflows.backtest)

    def __init__(self, base_url: httpx.URL, retries: RetryOptions | None, quiet: bool) -> None:
        self._base_url, self._retries, self._quiet = base_url, retries or RetryOptions(), quiet
        self.datasets: Datasets[Mode] = Datasets(self)
        self.problems: Problems[Mode] = Problems(self)
        self.jobs: Jobs[Mode] = Jobs(self)
        self.posteriors: Posteriors[Mode] = Posteriors(self)
        self.aliases: Aliases[Mode] = Aliases(self)
        self.prescriptions: Prescriptions[Mode] = Prescriptions(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._base_url)!r})"


def connection(base_url: str | None, api_key: str | None, timeout: float) -> dict[str, Any]:
    """Return the arguments of httpx's clients; the defaults are in BCO_URL and BCO_API_KEY."""
    key = api_key or os.environ.get("BCO_API_KEY")
    return {
        "base_url": base_url or os.environ.get("BCO_URL") or DEFAULT_URL,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": timeout,
    }


def to_httpx(client: httpx.Client | httpx.AsyncClient, request: HttpRequest) -> httpx.Request:
    """Return the request as httpx sends it."""
    return client.build_request(
        request.method,
        request.path,
        params=dict(request.params),
        content=request.body,
        data=None if request.form is None else dict(request.form),
        files=request.files,
        headers=dict(request.headers),
    )


class Exchange(Generic[T]):
    """An operation under way. A client performs each action that ``advance`` returns, and passes on the outcome."""

    result: T

    def __init__(self, operation: Steps[T], retries: RetryOptions, quiet: bool) -> None:
        self._steps = with_retries(operation, retries)
        self._bar = make_bar(quiet)

    def advance(self, outcome: httpx.Response | httpx.TransportError | None) -> HttpRequest | Pause | None:
        """Return the next request or pause; None once there is a ``result``."""
        try:
            while True:
                failed = isinstance(outcome, httpx.TransportError)
                step = self._steps.throw(outcome) if failed else self._steps.send(outcome)  # type: ignore[arg-type]
                if not isinstance(step, JobProgress):
                    return step
                self._bar.show(step.job)
                outcome = None
        except StopIteration as stop:
            self.result = stop.value
            return None

    def __enter__(self) -> Exchange[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self._steps.close()
        self._bar.close()


class PosteriorHandle(Runner[Mode]):
    """A posterior and its quality; subclasses decide with it."""

    def __init__(self, client: Any, posterior: PosteriorRecord) -> None:
        self._run = client._run
        self.posterior = posterior

    @property
    def id(self) -> str:
        return self.posterior.id

    @property
    def quality(self) -> str:
        """ok, warn or bad; ``reason`` says why."""
        return self.posterior.quality

    @property
    def reason(self) -> str:
        return self.posterior.reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, quality={self.quality!r}: {self.reason})"
