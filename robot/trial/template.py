"""The frame of a trial's page and how it looks."""

from __future__ import annotations

from string import Template

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<link rel="icon" href="data:,">
<style>
$style
</style>
</head>
<body>
<header><strong>vlrl</strong> <span>trial</span></header>
<main>
<h1>$title</h1>
$sentences
$warnings
<dl>$facts</dl>
<section><h2>Policies</h2>$policies
<p class="small">Intervals: Wilson, 95 %, for a number of episodes fixed beforehand. A trial that may stop early is
judged by the confidence sequences below.</p></section>
$pairs
<section><h2>Voids and notes</h2>$notes</section>
<section><details><summary>All verdicts</summary>$rows</details></section>
<section><details><summary>Settings</summary><pre>$settings</pre></details></section>
</main>
</body>
</html>
""")
STYLE = """
:root { color-scheme: light dark; --page: light-dark(#f6f7f9, #111418); --card: light-dark(#fff, #191d23);
  --text: light-dark(#1b1f26, #e4e8ee); --muted: light-dark(#5d6674, #98a2b0); --rule: light-dark(#e1e4ea, #2b313a);
  --line: light-dark(#2a62c9, #7aa7ff); --warn: light-dark(#8a5a00, #e0b04f); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
header { padding: 12px max(16px, calc(50vw - 420px)); background: var(--card); border-bottom: 1px solid var(--rule); }
header span, .small, dt, th { color: var(--muted); }
main { max-width: 872px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { margin: 0 0 12px; font-size: 26px; overflow-wrap: anywhere; }
h2 { margin: 0 0 8px; font-size: 18px; }
section { margin-top: 32px; }
.says { margin: 0 0 8px; font-size: 16px; max-width: 72ch; overflow-wrap: anywhere; }
.warn { margin: 0 0 8px; color: var(--warn); max-width: 80ch; }
.small, dt, th { font-size: 12px; }
dl { display: flex; flex-wrap: wrap; gap: 12px 28px; margin: 16px 0 0; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.table { overflow-x: auto; }
table { border-collapse: collapse; background: var(--card); border: 1px solid var(--rule); }
table { font-variant-numeric: tabular-nums; }
th, td { padding: 6px 12px; text-align: left; border-bottom: 1px solid var(--rule); }
.course { display: block; width: 100%; height: auto; margin-bottom: 12px; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; }
.axes line { stroke: var(--rule); } .axes .bar { stroke: var(--warn); stroke-dasharray: 5 4; }
.axes text { fill: var(--muted); font-size: 11px; }
.series .line { fill: none; stroke: var(--line); stroke-width: 1.8; }
.series .band { fill: var(--line); stroke: none; opacity: .14; }
pre { overflow-x: auto; }
"""
