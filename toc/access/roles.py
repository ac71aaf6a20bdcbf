"""Roles of people: the first role of the settings that has one of the person's groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toc.access.caller import Scope
from toc.runtime.sign_in_settings import ANYBODY, RoleName, RoleSettings

SCOPES_OF_ROLE: Mapping[RoleName, tuple[Scope, ...]] = {
    "viewer": ("read",),
    "operator": ("cancel", "read", "operate"),
    "admin": ("cancel", "read", "operate", "admin"),
}
"""The scopes of each role. No role makes jobs or takes leases: programs do that, with tokens of their own."""

GROUPS_READ_MAX = 1000
"""How many groups of a person are looked at."""


def find_role(roles: Sequence[RoleSettings], groups: Sequence[str]) -> RoleSettings | None:
    """The role of a person in these groups; None: the person has none.

    One role counts, not their union: a token has one list of types, which holds for all its scopes.
    """
    mine = {ANYBODY, *groups[:GROUPS_READ_MAX]}
    return next((role for role in roles if not mine.isdisjoint(role.groups)), None)
