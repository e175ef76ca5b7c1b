"""Merges that bring a heavy library to what was light: heavy.py ROOT(old checkout) FOLDER..."""

import sys
from collections import defaultdict
from pathlib import Path

from project import Project
from restructure import early_graph, reach

p = Project(Path(sys.argv[1]), sys.argv[2:])
g = early_graph({m: q.an for m, q in p.parts.items()}, False)
for heavy in ("torch", "transformers"):
    h = reach(g, [heavy])
    # merged graph
    new = defaultdict(set)
    for m, ts in g.items():
        for t in ts:
            a = p.parts[m].new_module if m in p.parts else m
            b = p.parts[t].new_module if t in p.parts else t
            if a != b:
                new[a].add(b)
    nh = reach(new, [heavy])
    for t, ps in sorted(p.groups.items()):
        light = [q for q in ps if q.module not in h]
        dark = [q for q in ps if q.module in h]
        if light and dark:
            users = {m for m in g if m not in h for q in light if q.module in g[m] and p.parts[m].target != t}
            print(
                heavy,
                t,
                "DARK",
                [q.stem for q in dark],
                "LIGHT",
                [(q.stem) for q in light],
                "light users:",
                sorted(users)[:9],
            )
