"""The table of pages, and their routes for `toc web`."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route

from toc.dashboard import (
    audit_page,
    jobs_pages,
    now_page,
    operation_pages,
    sign_in_page,
    types_pages,
)
from toc.dashboard.actions import button, change_form
from toc.dashboard.door import Page, PageDoor
from toc.dashboard.static_files import send_static
from toc.dashboard.watcher import Watcher
from toc.http.backend import Backend

PAGES = (
    Page("/ui/", now_page.show_now),
    Page("/ui/jobs", jobs_pages.show_jobs),
    Page("/ui/jobs/{job_id}", jobs_pages.show_job),
    Page("/ui/types", types_pages.show_types),
    Page("/ui/types/{biz_type}", types_pages.show_type),
    Page("/ui/dead", operation_pages.show_dead),
    Page("/ui/recurring", operation_pages.show_recurring),
    Page("/ui/cluster", operation_pages.show_cluster),
    Page("/ui/audit", audit_page.show_audit, "admin"),
    button("/v1/jobs/{job_id}:cancel", "/ui/jobs/{job_id}"),
    button("/v1/jobs/{job_id}:run_now", "/ui/jobs/{job_id}"),
    button("/v1/jobs/{job_id}:redrive", "/ui/jobs/{job_id}"),
    button("/v1/types/{biz_type}:pause", "/ui/types/{biz_type}"),
    button("/v1/types/{biz_type}:resume", "/ui/types/{biz_type}"),
    change_form("/v1/types/{biz_type}", "/ui/types/{biz_type}", types_pages.changes_of_form),
    button("/v1/recurring/{name}:pause", "/ui/recurring"),
    button("/v1/recurring/{name}:resume", "/ui/recurring"),
    button("/v1/recurring/{name}:run", "/ui/recurring"),
    Page("/ui/sign-in", sign_in_page.show_sign_in, None),
    Page("/ui/sign-in", sign_in_page.sign_in, None, "POST"),
    Page("/ui/sign-out", sign_in_page.sign_out, None, "POST"),
    Page("/ui/language", sign_in_page.choose_language, None, "POST"),
)


def make_site(backend: Backend) -> Sequence[BaseRoute]:
    """The routes of the dashboard; none if `web.dashboard` is false."""
    if not backend.settings.web.dashboard:
        return ()
    watcher = Watcher(backend.settings, backend.clock)
    backend.at_stop(watcher.stop)
    routes = [
        Route(page.path, PageDoor(page, backend, watcher), methods=[page.method]) for page in PAGES
    ]
    return [*routes, Route("/ui/static/{name:path}", send_static, methods=["GET"])]
