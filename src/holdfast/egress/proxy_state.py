"""What the connections of one proxy share: policy, limits, password, counters and refusals."""

from __future__ import annotations

import base64
import hmac
import secrets
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast import telemetry
from holdfast.egress.errors import EgressRefusedError
from holdfast.egress.host_limits import HostLimiter
from holdfast.egress.policy import EgressPolicy

PROXY_USERNAME: Final = "holdfast"
MAX_STORED_REFUSALS: Final = 1000
MAX_SHOWN_TARGET_CHARS: Final = 300


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """Limits of a `GuardedProxy`, for all its connections together.

    >>> from datetime import timedelta
    >>> from holdfast.egress import ProxyLimits
    >>> ProxyLimits(max_bytes=50_000_000, lifetime=timedelta(minutes=2)).max_connections
    128

    Arguments:
        max_connections: how many connections to the proxy are open at once
        max_bytes: how many bytes pass in both directions, of bodies and of tunnels
        idle_timeout: the maximum time without a byte on a connection
        lifetime: how long the proxy works after its start
    """

    max_connections: int = 128
    max_bytes: int = 1024 * 1024 * 1024
    idle_timeout: timedelta = timedelta(seconds=60)
    lifetime: timedelta = timedelta(minutes=30)


@dataclass(frozen=True)
class ProxyRefusal:
    """A request that a `GuardedProxy` refused: its method, its target and the reason.

    >>> from datetime import UTC, datetime
    >>> from holdfast.egress import ProxyRefusal
    >>> ProxyRefusal("CONNECT", "10.0.0.1:443", "The port is closed.", datetime.now(UTC)).target
    '10.0.0.1:443'
    """

    method: str
    target: str
    reason: str
    refused_at: datetime


class ProxyState:
    """State of one proxy. The connections of the proxy run in one event loop, so it needs no lock."""

    def __init__(self, policy: EgressPolicy, limits: ProxyLimits) -> None:
        self.policy = policy
        self.limits = limits
        self.password = secrets.token_urlsafe(32)
        self.limiter = HostLimiter(policy.max_connections_per_host, policy.max_requests_per_second)
        self.refusals: deque[ProxyRefusal] = deque(maxlen=MAX_STORED_REFUSALS)
        self.open_connections = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.has_expired = False
        credentials = f"{PROXY_USERNAME}:{self.password}".encode()
        self._authorization = b"basic " + base64.b64encode(credentials)

    def is_authorized(self, header: bytes) -> bool:
        """Return whether the value of a Proxy-Authorization header is the password of this proxy."""
        scheme, _, value = header.partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + value.strip(), self._authorization)

    def check_limits(self) -> None:
        """Raise EgressRefusedError if the proxy may not pass on another byte."""
        if self.has_expired:
            raise EgressRefusedError("The lifetime of the proxy has ended.")
        if self.open_connections > self.limits.max_connections:
            raise EgressRefusedError(f"More than {self.limits.max_connections} connections are open.")
        if self.bytes_sent + self.bytes_received > self.limits.max_bytes:
            raise EgressRefusedError(f"More than {self.limits.max_bytes} bytes were transferred.")

    def count_sent(self, size: int) -> None:
        """Count bytes from the program to a server. Raise EgressRefusedError over the limit."""
        self.bytes_sent += size
        self.check_limits()

    def count_received(self, size: int) -> None:
        """Count bytes from a server to the program. Raise EgressRefusedError over the limit."""
        self.bytes_received += size
        self.check_limits()

    def record_refusal(self, method: str, target: str, reason: str) -> None:
        """Store a refusal for the task and emit it for the log."""
        target = target.partition("?")[0][:MAX_SHOWN_TARGET_CHARS]
        self.refusals.append(ProxyRefusal(method[:20], target, reason, datetime.now(UTC)))
        telemetry.emit("egress.refused", source="proxy", target=target, reason=reason)
