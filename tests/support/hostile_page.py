"""A web page that tries to reach private servers in every way that a browser offers, and canaries on them.

Each attempt has its own path, so a canary knows which attempt reached it. The page sets its title to "done"
when every attempt has ended.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, urlsplit

from web_servers import RecordedRequest, WebServer, respond, run_web_server

SERVICE_WORKER = """
self.addEventListener('install', event => {
  const targets = JSON.parse(decodeURIComponent(new URL(location).searchParams.get('targets')));
  const attempts = targets.map(target => fetch(target + '/service-worker', {mode: 'no-cors'}).catch(() => 0));
  event.waitUntil(Promise.all(attempts));
});
"""
WORKER = """
onmessage = event => {
  try { importScripts(event.data + '/import-scripts'); } catch (error) { /* refused */ }
  fetch(event.data + '/worker', {mode: 'no-cors'}).catch(() => 0).then(() => postMessage('done'));
};
"""
PAGE = """<!doctype html><title>trying</title><body><script>
const targets = TARGETS, stun = STUN;
const wsTargets = targets.map(target => target.replace('http', 'ws'));
const redirect = '/redirect?to=';
const limit = promise => Promise.race([promise, new Promise(done => setTimeout(done, 8000))]);
const ended = element => limit(new Promise(done => { element.onload = element.onerror = done; }));
function add(name, attributes) {
  const element = document.createElement(name);
  const promise = ended(element);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  document.body.append(element);
  return promise;
}
async function useFont(target) {
  try { await limit(new FontFace('f', `url(${target}/font)`).load()); } catch (error) { /* refused */ }
}
async function useStyle(target) {
  const style = document.createElement('style');
  style.textContent = `@import url(${target}/css-import); body { background: url(${target}/css-image) }`;
  const promise = ended(style);
  document.body.append(style);
  await promise;
}
const useSocket = target => limit(new Promise(done => {
  try {
    const web = new WebSocket(target + '/websocket');
    web.onerror = web.onopen = done;
  } catch (error) { done(); }
}));
const useEvents = target => limit(new Promise(done => {
  const source = new EventSource(target + '/event-source');
  source.onerror = source.onopen = () => { source.close(); done(); };
}));
const useXhr = target => limit(new Promise(done => {
  const request = new XMLHttpRequest();
  request.onloadend = done;
  request.open('POST', target + '/xhr');
  request.send('x');
}));
const useWorker = target => limit(new Promise(done => {
  const worker = new Worker('/worker.js');
  worker.onmessage = worker.onerror = done;
  worker.postMessage(target);
}));
async function useServiceWorker() {
  const url = '/service-worker.js?targets=' + encodeURIComponent(JSON.stringify(targets));
  try {
    const registration = await navigator.serviceWorker.register(url);
    const worker = registration.installing || registration.waiting;
    await limit(new Promise(done => { worker.onstatechange = done; }));
  } catch (error) { /* not available outside secure contexts */ }
}
async function useTransport(target) {
  try {
    const transport = new WebTransport(target.replace('http:', 'https:') + '/x');
    await limit(transport.ready);
  } catch (error) { /* refused */ }
}
async function useWebRtc() {
  const servers = [{urls: stun}, ...targets.map(target => ({
    urls: `turn:${new URL(target).host}?transport=tcp`, username: 'u', credential: 'p'}))];
  const peer = new RTCPeerConnection({iceServers: servers});
  peer.createDataChannel('x');
  const gathered = limit(new Promise(done => {
    peer.onicegatheringstatechange = () => { if (peer.iceGatheringState === 'complete') done(); };
  }));
  await peer.setLocalDescription(await peer.createOffer());
  const host = new URL(targets[0]);
  const candidate = `candidate:1 1 udp 2122260223 ${host.hostname} ${host.port} typ host`;
  const other = new RTCPeerConnection();
  other.createDataChannel('x');
  await other.setLocalDescription(await other.createOffer());
  try {
    await peer.setRemoteDescription({type: 'answer', sdp: peer.localDescription.sdp
      .replace('a=setup:actpass', 'a=setup:active')});
    await peer.addIceCandidate({candidate, sdpMid: '0', sdpMLineIndex: 0});
  } catch (error) { /* not connected */ }
  await gathered;
}
function useForm(target) {
  const frame = document.createElement('iframe');
  frame.name = 'form' + Math.random();
  const promise = ended(frame);
  document.body.append(frame);
  const form = document.createElement('form');
  Object.assign(form, {method: 'post', action: target + '/form', target: frame.name});
  document.body.append(form);
  form.submit();
  return promise;
}
function usePing(target) {
  const link = document.createElement('a');
  Object.assign(link, {href: '#ping', ping: target + '/ping'});
  document.body.append(link);
  link.click();
}
function useSpeculation(target) {
  const script = document.createElement('script');
  script.type = 'speculationrules';
  const urls = {source: 'list', urls: [target + '/speculation'], eagerness: 'immediate'};
  script.textContent = JSON.stringify({prefetch: [urls], prerender: [urls]});
  document.body.append(script);
}
function attack(target, ws) {
  navigator.sendBeacon(target + '/beacon', 'x');
  usePing(target);
  useSpeculation(target);
  for (const rel of ['dns-prefetch', 'preconnect', 'prefetch', 'prerender', 'modulepreload'])
    add('link', {rel, href: target + '/' + rel});
  open(target + '/popup');
  return Promise.all([
    limit(fetch(target + '/fetch', {mode: 'no-cors'}).catch(() => 0)),
    limit(fetch(redirect + encodeURIComponent(target + '/redirect'), {mode: 'no-cors'}).catch(() => 0)),
    add('img', {src: target + '/image'}), add('script', {src: target + '/script'}),
    add('link', {rel: 'stylesheet', href: target + '/css'}),
    add('link', {rel: 'icon', href: target + '/icon'}),
    add('link', {rel: 'manifest', href: target + '/manifest'}),
    add('link', {rel: 'preload', as: 'image', href: target + '/preload'}),
    add('iframe', {src: target + '/iframe'}), add('object', {data: target + '/object'}),
    add('iframe', {src: redirect + encodeURIComponent(target + '/iframe-redirect')}),
    add('iframe', {srcdoc: `<meta http-equiv=refresh content="0;url=${target}/refresh">`}),
    add('embed', {src: target + '/embed'}),
    add('video', {src: target + '/video', poster: target + '/poster'}),
    add('audio', {src: target + '/audio', preload: 'auto'}),
    useFont(target), useStyle(target), useSocket(ws), useEvents(target), useXhr(target), useWorker(target),
    useForm(target), useTransport(target)]);
}
(async () => {
  for (const file of ['file:///etc/passwd', 'file:///proc/self/environ'])
    await Promise.all([add('iframe', {src: file}), add('img', {src: file}), fetch(file).catch(() => 0)]);
  await Promise.all(targets.map((target, index) => attack(target, wsTargets[index])));
  await useServiceWorker();
  await useWebRtc();
  document.title = 'done';
})();
</script>"""


@dataclass
class Canaries:
    """Servers on loopback that a guarded browser must not reach, on TCP and UDP."""

    port: int
    servers: list[WebServer] = field(default_factory=list[WebServer])
    datagrams: list[bytes] = field(default_factory=list[bytes])

    @property
    def connections(self) -> int:
        return sum(server.connections for server in self.servers)

    @property
    def attempts(self) -> set[str]:
        """The attempts of the page that reached a canary."""
        return {request.target.strip("/") for server in self.servers for request in server.requests}


class _DatagramCanary(asyncio.DatagramProtocol):
    def __init__(self, datagrams: list[bytes]) -> None:
        self._datagrams = datagrams

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._datagrams.append(data)


@asynccontextmanager
async def run_canaries() -> AsyncGenerator[Canaries]:
    """Run canaries on 127.0.0.1 and ::1, with the same port for TCP and UDP."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(run_web_server(respond(b"secret")))
        canaries = Canaries(first.port, [first])
        if socket.has_ipv6:
            sixth = await stack.enter_async_context(
                run_web_server(respond(b"secret"), host="::1", port=first.port)
            )
            canaries.servers.append(sixth)
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _DatagramCanary(canaries.datagrams), local_addr=("127.0.0.1", first.port)
        )
        stack.callback(transport.close)
        yield canaries


@asynccontextmanager
async def run_hostile_site(
    canaries: Canaries, *names: str, host: str = "127.0.0.2", port: int = 0
) -> AsyncGenerator[WebServer]:
    """Run the server of the hostile page. The page attacks the canaries by their addresses and by `names`."""
    hosts = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "[::ffff:127.0.0.1]", *names]
    targets = [f"http://{name}:{canaries.port}" for name in hosts]
    page = PAGE.replace("TARGETS", json.dumps(targets)).replace(
        "STUN", json.dumps(f"stun:127.0.0.1:{canaries.port}")
    )

    async def serve(request: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(request.target)
        scripts = {"/worker.js": WORKER, "/service-worker.js": SERVICE_WORKER}
        if url.path == "/redirect":
            location = quote(parse_qs(url.query)["to"][0], safe=":/[]")
            await respond(status=302, Location=location)(request, writer)
        elif url.path in scripts:
            await respond(scripts[url.path].encode(), Content_Type="text/javascript")(request, writer)
        else:
            await respond(page.encode(), Content_Type="text/html; charset=utf-8")(request, writer)

    async with run_web_server(serve, host=host, port=port) as site:
        yield site
