"""The page in the browser that shows a deployment."""

from __future__ import annotations

import hmac
import io
import json
import queue
import secrets
import threading
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
from PIL import Image

from vlrl import types
from vlrl.system.http_server import HttpError, HttpHandler, HttpServer
from vlrl.types import UserError

# The look that all pages of vlrl share, for pages of robots: colours, type, the top bar, tables and drawings.

LOOK = Path(types.__file__).parent / "report" / "look.css"  # a file that belongs to vlrl.types' package, no module


def page_head(title: str, policy: str, style: str = "") -> str:
    """A page up to its body.

    Args:
        policy: what the browser may load, after `default-src 'none'`.
        style: CSS beyond the shared look.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; {policy}">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{LOOK.read_text(encoding="utf-8")}{style}</style>
</head>
"""


def bar(kind: str) -> str:
    """The top bar of a page that does not change."""
    return f'<header class="topbar"><strong class="brand">vlrl</strong> <span class="muted">{kind}</span></header>'


# The live page: one HTML file with its own script and style, that asks for nothing from elsewhere.

CARDS = """
.cards { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
.card { padding: 12px; } figcaption { color: var(--muted); font-size: 13px; }
"""
STYLE = """
.topbar { height: auto; min-height: 48px; padding-block: 8px; gap: 8px 20px; flex-wrap: wrap; }
.topbar h1 { flex: 1; }
button { font: inherit; border: 1px solid var(--rule); border-radius: 8px; padding: 8px 14px; background: var(--card);
 color: inherit; cursor: pointer; } button:focus-visible { outline: 3px solid var(--accent); }
#stop { background: #b3261e; color: #fff; border: 0; font-size: 26px; font-weight: 700; padding: 14px 44px; }
img { width: 100%; height: auto; image-rendering: pixelated; border-radius: 6px; background: #0003; display: block; }
#said { font-size: 16px; margin-bottom: 12px; } #said[data-bad] { color: var(--bad); font-weight: 600; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 8px; }
.facts dd { font-size: 18px; }
ol { list-style: none; font-size: 13px; overflow-wrap: anywhere; } ol li { padding: 4px 0; }
.cards { align-items: start; } .card table { width: 100%; } td:nth-child(2) { text-align: right; }
td.bar { width: 40%; min-width: 90px; } td.bar b { display: block; position: relative; height: 6px; border-radius: 3px;
 background: var(--rule); } td.bar i { position: absolute; top: -4px; width: 6px; height: 14px; margin-left: -3px;
 border-radius: 3px; background: var(--accent); }
"""
LOADS = "img-src 'self' data:; connect-src 'self'; script-src 'nonce-{}'"
BODY = Template("""<body><header class="topbar"><strong class="brand">vlrl</strong><h1 id="title">vlrl deploy</h1>
<button id="stop" accesskey="s">STOP</button></header>
<main><section aria-live="polite"><p id="said">connecting</p>
<p><button data-order="success">Success</button> <button data-order="failure">Failure</button>
<button data-order="take">Take over / give back</button> <button data-order="next">Next</button></p></section>
<section><dl id="facts" class="facts"></dl></section>
<section id="cameras" class="cards" aria-label="Cameras"></section>
<section class="cards"><div class="card table"><h2>Joints</h2><table><tbody id="joints"></tbody></table></div>
<div class="card"><h2>Events</h2><ol id="events"></ol></div></section></main>
<script nonce="$nonce">
const token = "$token", by = id => document.getElementById(id), shown = {};
const order = text => fetch("order", {method: "POST", headers: {"X-Token": token}, body: text}).catch(() => 0);
by("stop").onclick = () => order("stop");
for (const each of document.querySelectorAll("[data-order]")) each.onclick = () => order(each.dataset.order);
function put(parent, rows, make) {
  parent.replaceChildren(...rows.map(make));
}
function element(name, text, more) {
  return Object.assign(document.createElement(name), {textContent: text}, more);
}
function joint([name, value, unit, share]) {
  const row = document.createElement("tr"), bar = element("td", "", {className: "bar"});
  const track = element("b", ""), mark = element("i", ""); mark.style.left = 100 * share + "%";
  track.append(mark); bar.append(track);
  row.append(element("td", name), element("td", value.toFixed(2) + " " + unit), bar); return row;
}
function camera([name, seq, age]) {
  let figure = shown[name];
  if (!figure) {
    figure = shown[name] = element("figure", "", {className: "card"});
    figure.append(element("img", "", {alt: "camera " + name}), document.createElement("figcaption"));
    by("cameras").append(figure);
  }
  if (figure.seq !== seq) figure.firstChild.src = "camera/" + encodeURIComponent(name) + ".jpg?" + seq;
  figure.seq = seq; figure.lastChild.textContent = name + ", " + (1000 * age).toFixed(0) + " ms old";
}
async function look() {
  try {
    const told = await (await fetch("state", {headers: {"X-Token": token}})).json();
    by("title").textContent = told.title; by("said").textContent = told.said;
    by("said").toggleAttribute("data-bad", told.bad);
    put(by("facts"), told.facts, ([name, value]) => {
      const one = document.createElement("div"); one.append(element("dt", name), element("dd", value)); return one;
    });
    told.cameras.forEach(camera); put(by("joints"), told.joints, joint);
    put(by("events"), told.events, text => element("li", text));
  } catch (error) { by("said").textContent = "the run has ended, or this page has lost it"; }
  setTimeout(look, 250);
}
look();
</script></body></html>
""")


def live(token: str, nonce: str) -> str:
    head = page_head("vlrl deploy", LOADS.format(nonce), CARDS + STYLE)
    return head + BODY.substitute(token=token, nonce=nonce)


# The live view: a web page on this machine alone, with a stop button.

ORDERS = ("stop", "success", "failure", "take", "next")
EMPTY = {
    "title": "vlrl deploy",
    "said": "starting",
    "bad": False,
    "facts": [],
    "cameras": [],
    "joints": [],
    "events": [],
}


class DashboardServer:
    """Serves the page on 127.0.0.1. What a person asks for there waits in `orders`.

    An order is a POST with the page's token, which no other web site can read, to a host of this machine's name.

    Args:
        port: 0: any free one.

    Raises:
        UserError: the port is taken.
    """

    def __init__(self, port: int):
        self._state: dict[str, Any] = EMPTY
        self._pictures: dict[str, np.ndarray] = {}
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.token = secrets.token_urlsafe(16)
        try:
            self._server = HttpServer("127.0.0.1", port, _handler(self))
        except OSError as error:
            raise UserError(f"view.port: {port}: {error.strerror}; another number, or view: none") from None
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="view", daemon=True).start()

    def show(self, state: Mapping[str, Any], pictures: Mapping[str, np.ndarray]) -> None:
        """What the page says from now on: `EMPTY`'s keys, and the cameras' pictures. Quick: nothing is encoded."""
        self._state, self._pictures = {**EMPTY, **state}, dict(pictures)

    def orders(self) -> list[str]:
        """What was asked for since the last call, of ORDERS."""
        lines = []
        while not self._orders.empty():
            lines.append(self._orders.get())
        return lines

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, path: str, authorised: bool) -> tuple[str, bytes] | None:
        """Content type and body; `authorised`: whoever asks has the token."""
        if path == "/":
            nonce = secrets.token_urlsafe(12)
            return "text/html; charset=utf-8", live(self.token, nonce).encode()
        if path == "/state" and authorised:
            return "application/json", json.dumps(self._state).encode()
        name = unquote(path.removeprefix("/camera/").removesuffix(".jpg"))
        if path.startswith("/camera/") and name in self._pictures:
            buffer = io.BytesIO()
            Image.fromarray(self._pictures[name]).save(buffer, "JPEG", quality=80)
            return "image/jpeg", buffer.getvalue()
        return None

    def _order(self, text: str) -> bool:
        if text in ORDERS:
            self._orders.put(text)
        return text in ORDERS


def _handler(view: DashboardServer) -> type[HttpHandler]:
    class DashboardHandler(HttpHandler):
        def handle_get(self) -> None:
            answer = view._answer(urlsplit(self.path).path, self._knows())
            self.send(*(200, *answer) if answer else (404, "text/plain", b"not here\n"))

        def handle_post(self) -> None:
            if not (self._knows() and self.path == "/order"):
                return self.send(403, "text/plain", b"refused\n")
            order: list[bytes] = []
            try:
                self.read_body(order.append, 63)
            except HttpError as error:
                return self.send(error.status, "text/plain", f"{error}\n".encode())
            good = view._order(b"".join(order).decode("ascii", "replace"))
            return self.send(200 if good else 400, "text/plain", b"taken\n" if good else b"no such order\n")

        def _knows(self) -> bool:
            return hmac.compare_digest(self.headers.get("X-Token", "").encode(), view.token.encode())

    return DashboardHandler
