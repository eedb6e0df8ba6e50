"""Settings by environment: every ``BCO_…`` variable, its meaning and its default, in one place."""

from __future__ import annotations

import ipaddress
import math
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]


class Settings(BaseSettings):
    """What an operator can choose. ``bco --help`` prints this list."""

    model_config = SettingsConfigDict(env_prefix="BCO_", extra="ignore")

    database_url: str = Field(
        "sqlite:///var/bco.db", description="SQLite file or PostgreSQL, e.g. postgresql://user:secret@host/bco"
    )
    database_connections: Annotated[int, Field(ge=2)] = Field(
        6, description="most connections of one process to PostgreSQL; a worker has computing processes besides"
    )
    host: str = Field("127.0.0.1", description="address the API listens on")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="port the API listens on")
    processes: Positive = Field(
        1, description="processes of the API behind one port; they share the memory of loaded posteriors"
    )
    workers: Positive = Field(1, description="worker processes that bco serve starts")
    worker_concurrency: Positive = Field(1, description="jobs a worker runs at the same time")
    threads: Positive = Field(1, description="CPU threads of each process; more than one hurts when cores are shared")
    worker_deadline_seconds: Annotated[float, Field(ge=2)] = Field(
        8.0, description="silence in seconds; a worker without a sign of life counts as dead after four times as long"
    )
    max_job_seconds: Annotated[float, Field(gt=0)] = Field(
        86_400.0, description="longest time a worker computes a job, in seconds; a job may ask for less"
    )
    max_queued_jobs: Positive = Field(1_000, description="most jobs waiting for a worker; beyond it new ones get 503")
    max_workspace_queued_jobs: Positive = Field(
        500, description="most jobs of one workspace waiting for a worker; beyond it new ones get 429"
    )
    max_workspace_running_jobs: NotNegative = Field(
        0, description="most jobs of one workspace that run at the same time, others wait; 0 for no limit"
    )
    max_workspace_seconds_a_day: NotNegative = Field(
        0, description="time that jobs of one workspace may run within a day; then new ones get 429; 0 for no limit"
    )
    workspace_weights: str = Field(
        "", description="shares of the workers, such as planning=3,sales=0.5; workspaces that are not named have 1"
    )
    keep_log_days: NotNegative = Field(90, description="days that logs of ended jobs are kept; 0 for ever")
    keep_parts_days: NotNegative = Field(
        0, description="days that parts of ended jobs are kept, with them results of batches; 0 for ever"
    )
    keep_runs_days: NotNegative = Field(7, description="days that the engine's rows of ended runs are kept; 0 for ever")
    webhook_hosts: str = Field(
        "", description="hosts that webhooks may go to, such as hooks.example,*.planner.example:8443; none by default"
    )
    webhook_networks: str = Field(
        "", description="private networks that webhooks may go to all the same, such as 10.1.0.0/16; none by default"
    )
    keep_prescriptions_days: NotNegative = Field(
        90, description="days that answered prescriptions and their outcomes are kept; 0 for ever"
    )
    log_prescriptions: bool = Field(
        True, description="keep every prescription and evaluation, to be found and opened again; true or false"
    )
    log_rate: Positive = Field(
        100,
        description="prescriptions a second that each API process keeps, in bursts up to twice as many; of more, some",
    )
    log_max_kb: Positive = Field(
        2_000, description="largest prescription that is kept: its request, and its answer, in kB"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")

    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="json, text, or auto: text on a terminal, json elsewhere"
    )

    allow_anonymous: bool = Field(
        False, description="let this machine in without a key even after there has been one; true or false"
    )
    session_hours: Annotated[float, Field(gt=0, le=8_760)] = Field(
        12.0, description="hours after which somebody who has shown a key to a page is asked for it again"
    )
    requests_per_second: NotNegative = Field(
        200, description="requests a second with one key, in bursts up to twice as many; 0 for no limit"
    )
    max_header_kb: Positive = Field(32, description="largest headers of a request, in kB")
    max_headers: Positive = Field(100, description="most headers of a request")
    header_seconds: Annotated[float, Field(gt=0)] = Field(
        10.0, description="longest time until the headers of a request are complete, in seconds"
    )
    body_seconds: Annotated[float, Field(gt=0)] = Field(
        20.0, description="seconds in which a body must bring at least 1 kB each; one that stalls so long is cut off"
    )
    max_connections_per_address: NotNegative = Field(
        512, description="most connections from one client address to an API process; 0 for no limit"
    )
    max_body_mb: Positive = Field(64, description="largest request body, in MB")
    max_bodies_mb: Positive = Field(256, description="bodies over 64 kB that one API process holds together, in MB")
    max_json_mb: Positive = Field(16, description="largest body in JSON, in MB; tables go as CSV or Parquet beyond it")
    max_json_values: Positive = Field(500_000, description="most values in a JSON body")
    upload_mb: Positive = Field(1024, description="memory in which an uploaded file is read, in MB; more gets 413")
    upload_seconds: Annotated[float, Field(gt=0)] = Field(
        60, description="longest time for reading an uploaded file, in seconds"
    )
    max_rows: Positive = Field(1_000_000, description="largest data set, in rows")
    max_columns: Positive = Field(500, description="most columns in a data set")
    max_cells: Positive = Field(20_000_000, description="most values in a data set: rows times columns")
    max_categories: Positive = Field(100, description="most different values of a categorical column")
    max_series: Positive = Field(100_000, description="most series in a data set: different combinations of its keys")
    max_parameters: Positive = Field(1_000_000, description="largest predictor, in parameters")
    max_members: Positive = Field(64, description="most members of a posterior")
    max_particles: Positive = Field(2_000, description="most particles stored with a posterior")
    max_posterior_mb: Positive = Field(1024, description="largest posterior: particles and members, in MB")
    max_scenarios: Positive = Field(2_000, description="most scenarios in one prescription")
    max_contexts: Positive = Field(20_000, description="most contexts in one prescribe call")
    max_alternatives: Positive = Field(
        100,
        description="most alternatives of one context in an evaluate call; BCO_MAX_CONTEXTS of all contexts together",
    )
    max_included_numbers: Positive = Field(
        400_000,
        description="contexts × scenarios × outcomes in a prescribe call with include; 25 times as many in a batch",
    )
    max_prescriptions: Positive = Field(
        64, description="prescribe calls at the same time, waiting ones included; more get 503"
    )
    max_workspace_prescriptions: NotNegative = Field(
        48, description="prescribe calls of one workspace at the same time; more get 429; 0 for no limit"
    )
    max_together: Positive = Field(
        64, description="most contexts of waiting prescribe calls that are decided together; 1 decides each call alone"
    )
    prescribe_seconds: Positive = Field(60, description="longest time for one prescribe call, in seconds")
    solver_processes: Positive = Field(
        3, description="processes of each API for what may take long; a workspace has at most all but one of them"
    )
    solver_memory_mb: Positive = Field(
        1024, description="memory each of them may take for its work, in MB; a call that needs more gets 503"
    )
    cache_mb: Positive = Field(512, description="memory the API may keep for loaded posteriors, in MB")

    @field_validator("database_url")
    @classmethod
    def database_is_known(cls, url: str) -> str:
        if not url.startswith(("sqlite:///", "postgresql://", "postgresql+psycopg://", "postgres://")):
            raise ValueError("must start with sqlite:/// or postgresql://")
        return url

    @field_validator("workspace_weights")
    @classmethod
    def weights_can_be_read(cls, text: str) -> str:
        if not all(weight > 0 for weight in _weights(text).values()):
            raise ValueError("write it like planning=3,sales=0.5, with weights above 0")
        return text

    @field_validator("webhook_networks")
    @classmethod
    def networks_can_be_read(cls, text: str) -> str:
        try:
            for part in filter(None, map(str.strip, text.split(","))):
                ipaddress.ip_network(part)
        except ValueError:
            raise ValueError("write it like 10.1.0.0/16,fd00::/8") from None
        return text

    def weight(self, workspace: str) -> float:
        """The share of the workers that a workspace has, beside the others'."""
        return _weights(self.workspace_weights).get(workspace, 1.0)

    @property
    def sqlalchemy_url(self) -> str:
        """The database URL with the driver spelled out."""
        for prefix in ("postgresql://", "postgres://"):
            if self.database_url.startswith(prefix):
                return "postgresql+psycopg://" + self.database_url.removeprefix(prefix)
        return self.database_url


def _weights(text: str) -> dict[str, float]:
    """The numbers in ``planning=3, sales=0.5``; 0 where there is none."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return {name.strip(): _positive(number) for name, _, number in pairs}


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < math.inf else 0.0


@lru_cache
def get_settings() -> Settings:
    """The settings of this process; a wrong one ends it with a sentence that names the variable."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = [f"BCO_{str(entry['loc'][0]).upper()}: {entry['msg']}" for entry in error.errors()]
        raise SystemExit("These settings cannot be used.\n" + "\n".join(wrong)) from None
