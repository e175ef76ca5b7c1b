"""The frame of a trial's page and how it looks."""

from __future__ import annotations

from string import Template

from robot import webpage

BODY = Template("""<body>
$bar
<main>
<section class="name">
<h1>$title_html</h1>
$sentences
$warnings
<dl class="facts">$facts</dl>
</section>
<section><h2>Policies</h2>$policies
<p class="muted">Intervals: Wilson, 95 %, for a number of episodes fixed beforehand. A trial that may stop early is
judged by the confidence sequences below.</p></section>
$pairs
<section><h2>Voids and notes</h2>$notes</section>
<section><details><summary>All verdicts</summary>$rows</details></section>
<section id="config"><details><summary>Settings</summary><pre tabindex="0">$settings</pre></details></section>
</main>
</body>
</html>
""")
STYLE = """
.says { margin: 8px 0 0; font-size: 16px; max-width: 72ch; overflow-wrap: anywhere; }
.warn { margin: 8px 0 0; color: var(--warn); max-width: 80ch; }
.course { display: block; width: 100%; max-width: 872px; height: auto; margin-bottom: 12px; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; }
"""


def framed(title: str, **parts: str) -> str:
    """The page. title: as text; parts: HTML of the body's places, escaped."""
    return webpage.head(title, "img-src data:", STYLE) + BODY.substitute(bar=webpage.bar("trial"), **parts)
