"""The live page: one HTML file with its own script and style, that asks for nothing from elsewhere."""

from __future__ import annotations

from string import Template

from robot import webpage

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
    head = webpage.head("vlrl deploy", LOADS.format(nonce), CARDS + STYLE)
    return head + BODY.substitute(token=token, nonce=nonce)
