"""The live page: one HTML file with its own script and style, that asks for nothing from elsewhere."""

from __future__ import annotations

from string import Template

STYLE = """
:root { color-scheme: light dark; --page: light-dark(#f6f7f9, #111418); --card: light-dark(#fff, #191d23);
 --text: light-dark(#1b1f26, #e4e8ee); --muted: light-dark(#5d6674, #98a2b0); --rule: light-dark(#e1e4ea, #2b313a);
 --accent: light-dark(#2a62c9, #7aa7ff); --good: light-dark(#14713c, #5bc98a); --bad: light-dark(#b3372f, #f0857c);
 --warn: light-dark(#8a5a00, #e0b04f); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 14px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1, h2, p, figure, dl, dd, ol { margin: 0; padding: 0; }
h1 { font-size: 26px; line-height: 1.2; overflow-wrap: anywhere; } h2 { font-size: 18px; margin-bottom: 8px; }
main, header { max-width: 1120px; margin: 0 auto; padding: 16px; } section { margin-bottom: 28px; }
.muted, figcaption, dt { color: var(--muted); font-size: 13px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; background: var(--card); }
th, td { padding: 6px 12px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { color: var(--muted); font-size: 12px; }
.table { overflow-x: auto; } .grid { display: grid; gap: 12px; }
.cards { grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 12px; }
"""
OWN = """
header { display: flex; gap: 16px; align-items: center; flex-wrap: wrap; position: sticky; top: 0;
 background: var(--page); } header h1 { flex: 1; }
button { font: inherit; border: 1px solid var(--rule); border-radius: 8px; padding: 8px 14px; background: var(--card);
 color: inherit; cursor: pointer; } button:focus-visible { outline: 3px solid var(--accent); }
#stop { background: #b3261e; color: #fff; border: 0; font-size: 26px; font-weight: 700; padding: 14px 44px; }
img { width: 100%; height: auto; image-rendering: pixelated; border-radius: 6px; background: #0003; display: block; }
#said { font-size: 16px; } #said[data-bad] { color: var(--bad); font-weight: 600; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 8px; }
dd { font-size: 18px; font-variant-numeric: tabular-nums; } ol { list-style: none; font-size: 13px; }
.cards { align-items: start; } #said { margin-bottom: 12px; } ol li { padding: 4px 0; } .card table { width: 100%; }
td.bar { width: 40%; min-width: 90px; } td.bar b { display: block; position: relative; height: 6px; border-radius: 3px;
 background: var(--rule); } td.bar i { position: absolute; top: -4px; width: 6px; height: 14px; margin-left: -3px;
 border-radius: 3px; background: var(--accent); }
"""
PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src 'self' data:; connect-src 'self';
 script-src 'nonce-$nonce'; style-src 'unsafe-inline'">
<title>vlrl deploy</title><link rel="icon" href="data:,"><style>$style</style></head>
<body><header><h1 id="title">vlrl deploy</h1><button id="stop" accesskey="s">STOP</button></header>
<main><section aria-live="polite"><p id="said">connecting</p>
<p><button data-order="success">Success</button> <button data-order="failure">Failure</button>
<button data-order="take">Take over / give back</button> <button data-order="next">Next</button></p></section>
<section><dl id="facts"></dl></section>
<section id="cameras" class="grid cards" aria-label="Cameras"></section>
<section class="grid cards"><div class="card table"><h2>Joints</h2><table><tbody id="joints"></tbody></table></div>
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
    return PAGE.substitute(token=token, nonce=nonce, style=STYLE + OWN)
