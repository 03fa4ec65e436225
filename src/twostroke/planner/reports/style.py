"""How pages of plans and claims look, in light and in dark."""

COLOUR_STYLE = """
:root { --bg: #fafaf7; --ink: #1a1d21; --muted: #5a626c; --line: #e4e4df; --one: #2563c9;
  --two: #b85400; --three: #0b7a55; --alarm: #c2263a }
@media (prefers-color-scheme: dark) { :root { --bg: #0e1116; --ink: #e8eaed; --muted: #9ba5b1;
  --line: #28303a; --one: #6fa8ff; --two: #ff9e4a; --three: #4cc79a; --alarm: #ff7183 } }
"""
PLOT_STYLE = """
svg { width: 100%; height: auto; max-width: 44rem } svg text { fill: var(--ink); font-size: 12px }
.axis { stroke: var(--muted) } .grid { stroke: var(--line) } .limit { stroke: var(--alarm) }
.dot { fill: var(--one) } .pale { fill: var(--muted); opacity: 0.45 }
.front { fill: none; stroke: var(--one); stroke-width: 1.5 }
"""
STYLE = f"""{COLOUR_STYLE}
body {{ background: var(--bg); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.1rem; margin-top: 2rem }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.85rem }}
th, td {{ text-align: right; padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line) }}
th:first-child, td:first-child {{ text-align: left; font-weight: normal; white-space: nowrap;
  position: sticky; left: 0; background: var(--bg) }}
.wide {{ overflow-x: auto }} .wide svg {{ min-width: 32rem }}
li {{ margin: 0.2rem 0; overflow-wrap: anywhere }} ul {{ padding-left: 1.2rem }}
.muted {{ color: var(--muted) }}
pre {{ overflow-x: auto; background: var(--line); padding: 0.8rem; white-space: pre-wrap;
  overflow-wrap: anywhere }}
{PLOT_STYLE}"""
