"""The HTTP interface of the studio: the page, summaries, trainings and jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from reverie import api
from reverie.base.errors import UserError, pick
from reverie.base.spec import first_problem
from reverie.studio import analysis_jobs, requests, sampling_jobs, steering_jobs
from reverie.studio.jobs import Busy, EventStream, Job, WorkQueue
from reverie.studio.library import Library
from reverie.studio.monitor import RunMonitor
from reverie.studio.open_runs import OpenRuns
from reverie.studio.requests import StudioRequest
from reverie.studio.serialize import serialize
from reverie.studio.summaries import Summaries
from reverie.studio.trainings import FormField, Trainings

STATIC = Path(__file__).parent / "static"
R = TypeVar("R", bound=StudioRequest)
Endpoint = Callable[[Request], Awaitable[Any]]

# Kind of job -> type of the request, function of the job.
JOBS: Mapping[str, tuple[type[StudioRequest], Callable[[OpenRuns, Job, Any], dict[str, Any]]]] = {
    "sample": (requests.SampleRequest, sampling_jobs.sample),
    "sample-file": (requests.SampleFileRequest, sampling_jobs.sample_file),
    "nearest": (requests.NearestRequest, sampling_jobs.nearest),
    "upload": (requests.UploadRequest, steering_jobs.upload),
    "inpaint": (requests.InpaintRequest, steering_jobs.inpaint),
    "edit": (requests.EditRequest, steering_jobs.edit),
    "restore": (requests.RestoreRequest, steering_jobs.restore),
    "interpolate": (requests.InterpolateRequest, steering_jobs.interpolate),
    "illusion": (requests.IllusionRequest, steering_jobs.illusion),
    "evaluate": (requests.EvaluateRequest, analysis_jobs.evaluate),
    "inspect": (requests.InspectRequest, analysis_jobs.inspect),
    "demo": (requests.DemoRequest, analysis_jobs.compute_demo),
}


class Studio:
    """The server side of the page."""

    def __init__(self, folder: Path, form: list[FormField]) -> None:
        self.library = Library(folder)
        self.trainings = Trainings(self.library, form)
        self.summaries = Summaries(self.library, self.trainings)
        self.open_runs, self.queue, self.monitor = OpenRuns(self.library), WorkQueue(), RunMonitor(self.summaries)

    def app(self) -> ASGIApp:
        """Return the application, without the guard."""
        routes = [
            Route("/", self._page),
            Mount("/static", _UncachedFiles(directory=STATIC)),
            Route("/api/studio", _endpoint(self._studio)),
            Route("/api/runs", _endpoint(self._runs)),
            Route("/api/runs/{id}", _endpoint(self._run)),
            Route("/api/runs/{id}/events", _endpoint(self._events)),
            Route("/api/runs/{id}/preview/{name}", _endpoint(self._preview)),
            Route("/api/runs/{id}/stop", _endpoint(self._stop), methods=["POST"]),
            Route("/api/runs/{id}/resume", _endpoint(self._resume), methods=["POST"]),
            Route("/api/trainings", _endpoint(self._start), methods=["POST"]),
            Route("/api/data", _endpoint(self._data)),
            Route("/api/data/{id}", _endpoint(self._data_kind)),
            Route("/api/jobs/{kind}", _endpoint(self._job), methods=["POST"]),
        ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        """Load the constants before the first request; at shutdown cancel jobs; trainings continue."""
        loading = asyncio.ensure_future(run_in_threadpool(self.summaries.studio))
        yield
        loading.cancel()
        self.queue.close()
        self.monitor.close()
        if queued := self.trainings.close():
            print(f"queued trainings that were not started: {', '.join(queued)}", flush=True)

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def _studio(self, request: Request) -> Any:
        return await run_in_threadpool(self.summaries.studio)

    async def _runs(self, request: Request) -> Any:
        return await run_in_threadpool(self.summaries.runs)

    async def _run(self, request: Request) -> Any:
        return await run_in_threadpool(self.summaries.run, request.path_params["id"])

    async def _preview(self, request: Request) -> Any:
        content = await run_in_threadpool(self.summaries.preview, request.path_params["id"], request.path_params["name"])
        return Response(content, media_type="image/png", headers={"cache-control": "no-cache"})

    async def _data(self, request: Request) -> Any:
        return await run_in_threadpool(self.summaries.data)

    async def _data_kind(self, request: Request) -> Any:
        return await run_in_threadpool(self.summaries.data_kind, request.path_params["id"])

    async def _start(self, request: Request) -> Any:
        body = await _parse(request, requests.StartRequest)

        def start() -> dict[str, Any]:
            command = self.trainings.command(body.data, body.name, body.options)
            return {**asdict(self.trainings.start(body.data, body.name, body.options)), "command": command}

        return await run_in_threadpool(start)

    async def _stop(self, request: Request) -> Any:
        await run_in_threadpool(lambda: self.trainings.stop(self.summaries.known_run(request.path_params["id"])))
        return {}

    async def _resume(self, request: Request) -> Any:
        body = await _parse(request, requests.ResumeRequest)
        return await run_in_threadpool(
            lambda: asdict(self.trainings.resume(self.library.run(request.path_params["id"]), body.options))
        )

    async def _events(self, request: Request) -> Any:
        run = await run_in_threadpool(self.summaries.known_run, request.path_params["id"])
        return self.monitor.stream(run)

    async def _job(self, request: Request) -> Any:
        kind, function = pick(JOBS, request.path_params["kind"], "kind of job")
        body = await _parse(request, kind)

        def run(job: Job) -> dict[str, Any]:
            with api.confined(self.library.root):  # run folders are untrusted
                return function(self.open_runs, job, body)

        job = Job(run)
        self.queue.add(job)
        return EventStream(job, job.cancel, lambda: self.queue.is_contested(job))


class _UncachedFiles(StaticFiles):
    """Files that the browser revalidates each time, so that a new version of the page is loaded at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return the response with a file."""
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


async def _parse(request: Request, kind: type[R]) -> R:
    """Return the validated body of a request."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise UserError("the content type of the request must be application/json")
    return kind.model_validate_json(await request.body())


def _endpoint(function: Endpoint) -> Endpoint:
    """Return an endpoint that responds with JSON, also for errors."""

    async def respond(request: Request) -> Any:
        status, headers = 400, {"cache-control": "no-store"}
        try:
            result = await function(request)
            if isinstance(result, Response | EventStream):
                return result
            return JSONResponse(serialize(result), headers=headers)
        except ClientDisconnect:
            status, message = 413, "the request is too large"
        except ValidationError as error:
            message = first_problem(error)
        except Busy as error:
            status, message, headers["retry-after"] = 503, str(error), "5"
        except UserError as error:
            message = str(error)
        return JSONResponse({"message": message}, status, headers)

    return respond
