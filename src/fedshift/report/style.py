"""The style of the page: one accent, seven colours that stay apart for the colour-blind, light and dark."""

STYLE = """\
:root {
  --paper: #ffffff; --ink: #1b1f24; --soft: #5b6470; --rule: #e2e6ea; --tint: #eef4fb; --strong: #0b4f8a;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #b8578f; --c4: #2f9bd6; --c5: #d19a00; --c6: #444b54;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --ink: #e6e9ed; --soft: #9aa4b0; --rule: #2b3138; --tint: #1c2a3a; --strong: #9cc9f5;
    --c0: #4aa8e8; --c1: #f2894b; --c2: #35c49a; --c3: #dd90bb; --c4: #93d3f7; --c5: #e6b84a; --c6: #c3cad2;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header { margin-bottom: 2.25rem; }
.kicker { margin: 0; color: var(--soft); font-size: .85rem; letter-spacing: .04em; }
h1 {
  margin: .15rem 0 .35rem; font-size: clamp(1.5rem, 4.5vw, 2.1rem); line-height: 1.2; letter-spacing: -.01em;
}
.lead { margin: 0; color: var(--soft); }
h2 { margin: 0 0 .75rem; font-size: 1.1rem; }
section { margin: 2.5rem 0 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td {
  padding: .5rem .75rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;
}
th:first-child, .runs th, .runs td { text-align: left; }
thead th { color: var(--soft); font-size: .85rem; font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; }
tbody th:first-child { position: sticky; left: 0; background: var(--paper); }
.unit { font-weight: 400; }
.spread { color: var(--soft); font-size: .85em; font-weight: 400; }
.best { font-weight: 700; color: var(--strong); background: var(--tint); }
.caption { margin: .6rem 0 0; max-width: 48rem; color: var(--soft); font-size: .85rem; }
.notes { margin: .75rem 0 0; padding-left: 1.1rem; max-width: 48rem; font-size: .9rem; }
.legend {
  display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 0 0 .9rem; padding: 0;
  list-style: none; font-size: .9rem;
}
.swatch { width: 28px; height: 10px; margin-right: .5rem; vertical-align: middle; }
.charts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17.5rem), 1fr)); gap: 1.5rem 1.25rem;
}
figure { margin: 0; max-width: 32rem; }
figcaption { margin-bottom: .25rem; font-size: .9rem; font-weight: 600; }
figure svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; font-family: inherit; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); fill: none; }
.axis { stroke: var(--soft); fill: none; }
.line { fill: none; stroke-width: 2.25; stroke-linejoin: round; stroke-linecap: round; }
.band { stroke: none; opacity: .13; }
.dot { stroke: var(--paper); stroke-width: 1.5; }
.line.c0 { stroke: var(--c0); } .band.c0, .dot.c0 { fill: var(--c0); }
.line.c1 { stroke: var(--c1); } .band.c1, .dot.c1 { fill: var(--c1); }
.line.c2 { stroke: var(--c2); } .band.c2, .dot.c2 { fill: var(--c2); }
.line.c3 { stroke: var(--c3); } .band.c3, .dot.c3 { fill: var(--c3); }
.line.c4 { stroke: var(--c4); } .band.c4, .dot.c4 { fill: var(--c4); }
.line.c5 { stroke: var(--c5); } .band.c5, .dot.c5 { fill: var(--c5); }
.line.c6 { stroke: var(--c6); } .band.c6, .dot.c6 { fill: var(--c6); }
.line.d1 { stroke-dasharray: 7 5; } .line.d2 { stroke-dasharray: 2 5; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .4rem 1.25rem; margin: 0; max-width: 48rem; }
dt { color: var(--soft); }
dd { margin: 0; }
summary { cursor: pointer; font-weight: 600; }
details[open] summary { margin-bottom: .75rem; }
code { font: .85em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (max-width: 34rem) {
  main { padding: 1.5rem 1rem 3rem; }
  th, td { padding: .45rem .5rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .6rem; }
}
@media print { details { display: none; } main { max-width: none; padding: 0; } }
"""
