"""Move what uses the database of the process to the database of a test, and back.

Modules create their client and their application at import time, before a test has a database. The fixture
`hf` starts a redirection for each test. Applications register here, because the fixture must not import the
web framework, which may not be installed.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.settings import Secret, Settings


@dataclass(frozen=True)
class Redirection:
    """The database and the home folder of a test."""

    url: Secret
    settings: Settings

    def adapt_settings(self, settings: Settings) -> Settings:
        """Return the settings with the database, the files and the signing key of the test."""
        return replace(
            settings,
            database_url=self.url,
            read_url=None,
            shards=None,
            shard=None,
            home=self.settings.home,
            storage_url=self.settings.storage_url,
            signing_key=self.settings.signing_key,
        )


class Redirectable(Protocol):
    """An object that uses the database of its settings and can use another one for the time of a test."""

    def redirect(self, redirection: Redirection) -> None: ...

    async def end_redirection(self) -> None: ...


class RedirectionRegistry:
    """All redirectable objects of the process, and the redirection that applies now."""

    def __init__(self) -> None:
        self._members: weakref.WeakSet[Redirectable] = weakref.WeakSet()
        self._current: Redirection | None = None

    @property
    def current(self) -> Redirection | None:
        """The redirection of the running test, if there is one."""
        return self._current

    def register(self, member: Redirectable) -> None:
        """Add an object. It is redirected at once while a test runs."""
        self._members.add(member)
        if self._current is not None:
            member.redirect(self._current)

    def start(self, redirection: Redirection) -> None:
        """Redirect all objects, and those that are created until `end`."""
        self._current = redirection
        for member in list(self._members):
            member.redirect(redirection)

    async def end(self) -> None:
        """Close what the objects opened on the database of the test, and give them back their own."""
        self._current = None
        for member in list(self._members):
            await member.end_redirection()


redirectable_objects = RedirectionRegistry()
