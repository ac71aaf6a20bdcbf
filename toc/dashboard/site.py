"""The table of pages, and their routes for `toc web`."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route

from toc.dashboard import (
    audit_page,
    cluster_page,
    forecast_page,
    jobs_pages,
    mass_pages,
    now_page,
    operation_pages,
    reconcile_page,
    recurring_pages,
    sign_in_page,
    sql_page,
    types_pages,
)
from toc.dashboard.actions import button, change_form
from toc.dashboard.door import Page, PageDoor
from toc.dashboard.static_files import send_static
from toc.dashboard.watcher import Watcher
from toc.errors import SettingsError
from toc.http.backend import Backend

PAGES = (
    Page("/ui/", now_page.show_now),
    Page("/ui/jobs", jobs_pages.show_jobs),
    Page("/ui/jobs/{job_id}", jobs_pages.show_job),
    Page("/ui/types", types_pages.show_types),
    Page("/ui/types/{biz_type}", types_pages.show_type),
    Page("/ui/dead", operation_pages.show_dead),
    Page("/ui/recurring", recurring_pages.show_recurring),
    Page("/ui/recurring/{name}", recurring_pages.show_schedule),
    Page("/ui/cluster", cluster_page.show_cluster),
    Page("/ui/forecast", forecast_page.show_forecast),
    Page("/ui/audit", audit_page.show_audit, "admin"),
    button("/v1/jobs/{job_id}:cancel", "/ui/jobs/{job_id}"),
    button("/v1/jobs/{job_id}:run_now", "/ui/jobs/{job_id}"),
    button("/v1/jobs/{job_id}:redrive", "/ui/jobs/{job_id}"),
    button("/v1/jobs/{job_id}:discard", "/ui/jobs/{job_id}"),
    button("/v1/types/{biz_type}:pause", "/ui/types/{biz_type}"),
    button("/v1/types/{biz_type}:resume", "/ui/types/{biz_type}"),
    change_form("/v1/types/{biz_type}", "/ui/types/{biz_type}", types_pages.changes_of_form),
    button("/v1/recurring/{name}:pause", "/ui/recurring"),
    button("/v1/recurring/{name}:resume", "/ui/recurring"),
    button("/v1/recurring/{name}:run", "/ui/recurring"),
    button("/v1/recurring/{name}:backfill", "/ui/recurring/{name}"),
    Page("/ui/reconcile", reconcile_page.show_reconcile),
    Page("/ui/sql", sql_page.show_sql, "admin"),
    Page("/ui/sql", sql_page.run_sql, "admin", "POST"),
    Page("/ui/mass_changes", mass_pages.show_changes),
    Page("/ui/mass_changes/new", mass_pages.show_form, "operate"),
    Page("/ui/mass_changes", mass_pages.start_change, "operate", "POST"),
    Page("/ui/mass_changes/{mass_change_id}", mass_pages.show_change),
    button("/v1/mass_changes/{mass_change_id}:stop", "/ui/mass_changes/{mass_change_id}"),
    Page("/ui/sign-in", sign_in_page.show_sign_in, None),
    Page("/ui/sign-in", sign_in_page.sign_in, None, "POST"),
    Page("/ui/sign-out", sign_in_page.sign_out, None, "POST"),
    Page("/ui/language", sign_in_page.choose_language, None, "POST"),
)


def make_site(backend: Backend) -> Sequence[BaseRoute]:
    """The routes of the dashboard; none if `web.dashboard` is false. Raises SettingsError."""
    if not backend.settings.web.dashboard:
        return ()
    watcher = Watcher(backend.settings, backend.clock)
    backend.at_stop(watcher.stop)
    pages = (*PAGES, *_make_oidc_pages(backend))
    routes = [
        Route(page.path, PageDoor(page, backend, watcher), methods=[page.method]) for page in pages
    ]
    return [*routes, Route("/ui/static/{name:path}", send_static, methods=["GET"])]


def _make_oidc_pages(backend: Backend) -> Sequence[Page]:
    """The pages of the sign-in by OpenID Connect, if the settings have a provider. Raises SettingsError."""
    if backend.settings.web.sign_in.oidc.issuer is None:
        return ()
    try:
        from toc.dashboard.oidc_pages import OidcPages  # noqa: PLC0415 - of the extra oidc
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in ("joserfc", "httpx"):
            raise
        raise SettingsError(
            f"web.sign_in.oidc: needs the package {error.name}: pip install 'toc[oidc]'"
        ) from None
    return OidcPages(backend).pages()
