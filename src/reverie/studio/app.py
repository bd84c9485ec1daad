"""The studio's addresses: the page, what there is, trainings, and work."""

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
from reverie.studio import drawing, looking, steering, wishes
from reverie.studio.facts import Facts
from reverie.studio.library import Library
from reverie.studio.opened import Opened
from reverie.studio.plain import as_json
from reverie.studio.trainings import Field, Trainings
from reverie.studio.watching import Watchers
from reverie.studio.wishes import Wish
from reverie.studio.work import Busy, Job, Lane, Stream

STATIC = Path(__file__).parent / "static"
W = TypeVar("W", bound=Wish)
Answer = Callable[[Request], Awaitable[Any]]

# What the page can ask to be done: what must be told of it, and what does it.
WORK: Mapping[str, tuple[type[Wish], Callable[[Opened, Job, Any], dict[str, Any]]]] = {
    "draw": (wishes.DrawWish, drawing.draw),
    "film": (wishes.FilmWish, drawing.film),
    "nearest": (wishes.NearestWish, drawing.nearest),
    "send": (wishes.SendWish, steering.send),
    "inpaint": (wishes.InpaintWish, steering.inpaint),
    "edit": (wishes.EditWish, steering.edit),
    "restore": (wishes.RestoreWish, steering.restore),
    "interpolate": (wishes.InterpolateWish, steering.interpolate),
    "illusion": (wishes.IllusionWish, steering.illusion),
    "evaluate": (wishes.EvaluateWish, looking.evaluate),
    "inspect": (wishes.InspectWish, looking.inspect),
    "lesson": (wishes.LessonWish, looking.lesson),
}


class Studio:
    """Everything behind the page."""

    def __init__(self, folder: Path, form: list[Field]) -> None:
        self.library = Library(folder)
        self.trainings = Trainings(self.library, form)
        self.facts = Facts(self.library, self.trainings)
        self.opened, self.lane, self.watchers = Opened(self.library), Lane(), Watchers(self.facts)

    def app(self) -> ASGIApp:
        """Return the application, without the guard."""
        routes = [
            Route("/", self._page),
            Mount("/static", _Fresh(directory=STATIC)),
            Route("/api/studio", _answered(self._studio)),
            Route("/api/runs", _answered(self._runs)),
            Route("/api/runs/{id}", _answered(self._run)),
            Route("/api/runs/{id}/watch", _answered(self._watch)),
            Route("/api/runs/{id}/preview/{name}", _answered(self._preview)),
            Route("/api/runs/{id}/stop", _answered(self._stop), methods=["POST"]),
            Route("/api/runs/{id}/resume", _answered(self._resume), methods=["POST"]),
            Route("/api/trainings", _answered(self._start), methods=["POST"]),
            Route("/api/data", _answered(self._data)),
            Route("/api/data/{id}", _answered(self._kind)),
            Route("/api/work/{verb}", _answered(self._work), methods=["POST"]),
        ]
        app = Starlette(routes=routes, lifespan=self._running)
        app.router.redirect_slashes = False
        return app

    @asynccontextmanager
    async def _running(self, _: object) -> AsyncIterator[None]:
        """Load what the first request would wait for; at the end stop working, while trainings go on."""
        warm = asyncio.ensure_future(run_in_threadpool(self.facts.studio))
        yield
        warm.cancel()
        self.lane.close()
        self.watchers.close()
        if waiting := self.trainings.close():
            print(f"not started: {', '.join(waiting)}", flush=True)

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def _studio(self, request: Request) -> Any:
        return await run_in_threadpool(self.facts.studio)

    async def _runs(self, request: Request) -> Any:
        return await run_in_threadpool(self.facts.runs)

    async def _run(self, request: Request) -> Any:
        return await run_in_threadpool(self.facts.run, request.path_params["id"])

    async def _preview(self, request: Request) -> Any:
        content = await run_in_threadpool(self.facts.preview, request.path_params["id"], request.path_params["name"])
        return Response(content, media_type="image/png", headers={"cache-control": "no-cache"})

    async def _data(self, request: Request) -> Any:
        return await run_in_threadpool(self.facts.data)

    async def _kind(self, request: Request) -> Any:
        return await run_in_threadpool(self.facts.kind, request.path_params["id"])

    async def _start(self, request: Request) -> Any:
        wish = await _wished(request, wishes.StartWish)

        def start() -> dict[str, Any]:
            said = self.trainings.command(wish.data, wish.name, wish.options)
            return {**asdict(self.trainings.start(wish.data, wish.name, wish.options)), "command": said}

        return await run_in_threadpool(start)

    async def _stop(self, request: Request) -> Any:
        await run_in_threadpool(lambda: self.trainings.stop(self.facts.known(request.path_params["id"])))
        return {}

    async def _resume(self, request: Request) -> Any:
        wish = await _wished(request, wishes.ResumeWish)
        return await run_in_threadpool(
            lambda: asdict(self.trainings.resume(self.library.run(request.path_params["id"]), wish.options))
        )

    async def _watch(self, request: Request) -> Any:
        run = await run_in_threadpool(self.facts.known, request.path_params["id"])
        return self.watchers.watch(run)

    async def _work(self, request: Request) -> Any:
        kind, do = pick(WORK, request.path_params["verb"], "work")
        wish = await _wished(request, kind)

        def work(job: Job) -> dict[str, Any]:
            with api.confined(self.library.root):  # a run may come from anyone
                return do(self.opened, job, wish)

        job = Job(work)
        self.lane.add(job)
        return Stream(job, job.cancel, lambda: self.lane.is_contested(job))


class _Fresh(StaticFiles):
    """Files that the browser asks about every time, so that a new version of the page is seen at once."""

    def file_response(self, *args: Any, **also: Any) -> Response:
        """Return the answer with a file."""
        answer = super().file_response(*args, **also)
        answer.headers["cache-control"] = "no-cache"
        return answer


async def _wished(request: Request, kind: type[W]) -> W:
    """Return what a request asks for; refuse what is not of that kind."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise UserError("what is asked for must be told as JSON")
    return kind.model_validate_json(await request.body())


def _answered(answer: Answer) -> Answer:
    """Return an endpoint whose refusals are told as JSON."""

    async def answered(request: Request) -> Any:
        status, headers = 400, {"cache-control": "no-store"}
        try:
            found = await answer(request)
            if isinstance(found, Response | Stream):
                return found
            return JSONResponse(as_json(found), headers=headers)
        except ClientDisconnect:
            status, message = 413, "what was sent is too long"
        except ValidationError as error:
            message = first_problem(error)
        except Busy as error:
            status, message, headers["retry-after"] = 503, str(error), "5"
        except UserError as error:
            message = str(error)
        return JSONResponse({"message": message}, status, headers)

    return answered
