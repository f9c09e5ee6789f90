"""The command line with which Chromium sends all its traffic through a guarded proxy."""

from __future__ import annotations

from typing import Final

from holdfast.egress.proxy import PROXY_HOST, GuardedProxy

# Features that open connections of their own, or that resolve names outside the proxy.
_DISABLED_FEATURES: Final = (
    "AsyncDns", "AutofillServerCommunication", "CertificateTransparencyComponentUpdater",
    "DialMediaRouteProvider", "DirectSockets", "DnsOverHttps", "InterestFeedContentSuggestions",
    "MediaRouter", "NetworkTimeServiceQuerying", "OptimizationHints", "Prerender2", "Translate",
    "UseDnsHttpsSvcb", "WebRtcHideLocalIpsWithMdns", "WebTransport",
)  # fmt: skip


def chromium_arguments(proxy: GuardedProxy) -> list[str]:
    """Return the arguments that make Chromium send all its traffic through the proxy, and nothing around it.

    >>> from holdfast.egress import EgressPolicy, GuardedProxy, chromium_arguments
    >>> async def main() -> None:
    ...     async with GuardedProxy(EgressPolicy()) as proxy:
    ...         print(["chromium", "--headless", *chromium_arguments(proxy)])

    Chromium takes no password on its command line. Give it `proxy.username` and `proxy.password` when it
    asks, with the event `Fetch.authRequired` of its debugging protocol, or with the option `proxy` of
    Playwright. Without them every request fails with 407.
    """
    return [
        f"--proxy-server={proxy.server_url}",
        # Chromium would reach loopback and link-local addresses without the proxy.
        "--proxy-bypass-list=<-loopback>",
        # Names are resolved in the proxy only. A request that avoids the proxy finds no address.
        f"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE {PROXY_HOST}",
        "--dns-prefetch-disable",
        # QUIC and WebRTC use UDP, which no HTTP proxy carries.
        "--disable-quic",
        "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        f"--disable-features={','.join(_DISABLED_FEATURES)}",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-client-side-phishing-detection",
        "--disable-default-apps",
        "--disable-domain-reliability",
        "--disable-extensions",
        "--disable-sync",
        "--metrics-recording-only",
        "--no-default-browser-check",
        "--no-first-run",
        "--no-pings",
    ]
