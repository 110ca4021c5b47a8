"""How the page of ``coldstart report`` looks, by day and by night. The colours of phases hold for the legend, too."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1c2430; --faint: #667085; --line: #e3e7ee; --card: #f5f7fa; --bad: #c62a2f;
  --build: #a8b3c4; --discover: #8d7fd6; --handshake: #c59be0; --transfer: #2f7fd8; --fallback: #e08a1e;
  --verify: #2ba58a; --left: #9aa7b8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181f; --ink: #e6eaf1; --faint: #98a2b3; --line: #2a313d; --card: #1d232d; --bad: #ff7a76;
    --build: #56627a; --discover: #8f82e8; --handshake: #b98ade; --transfer: #4f9dee; --fallback: #f0a244;
    --verify: #3cc3a4; --left: #6d7a8d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 24px 28px 64px; max-width: 1500px; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums;
}
h1 { font-size: 24px; margin: 0; }
h2 { font-size: 16px; margin: 32px 0 8px; }
h2 small { font-weight: normal; color: var(--faint); margin-left: 8px; }
.about { color: var(--faint); margin: 4px 0 16px; }
ul { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap; }
.figures { gap: 10px; }
.figures li { background: var(--card); border-radius: 8px; padding: 8px 14px; color: var(--faint); }
.figures b { display: block; font-size: 20px; color: var(--ink); }
.legend { gap: 6px 18px; margin-top: 16px; color: var(--faint); font-size: 12px; }
.legend svg { display: inline; vertical-align: -2px; margin-right: 3px; }
.row {
  display: grid; grid-template-columns: minmax(90px, 200px) 1fr minmax(76px, max-content); gap: 12px;
  align-items: center; height: 22px;
}
.rollout .row { grid-template-columns: minmax(90px, 200px) 1fr 76px; }
.sources .row { grid-template-columns: minmax(90px, 200px) 1fr 180px; }
.row:hover { background: var(--card); }
.row.axis, .row.axis:hover { background: none; color: var(--faint); font-size: 11px; }
.row svg { width: 100%; height: 22px; overflow: visible; }
.name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.took { color: var(--faint); white-space: nowrap; }
.row.failed .name, .row.failed .took, .bad, .figures .bad b { color: var(--bad); }
svg text { fill: var(--faint); font-size: 11px; }
.grid line { stroke: var(--line); stroke-width: 1; }
rect { min-width: 1px; }
.build { fill: var(--build); } .discover { fill: var(--discover); } .handshake { fill: var(--handshake); }
.transfer { fill: var(--transfer); } .fallback { fill: var(--fallback); } .verify { fill: var(--verify); }
.pull.peer { fill: var(--transfer); opacity: 0.6; } .pull.storage { fill: var(--fallback); opacity: 0.6; }
.pull.left { fill: var(--left); }
.sign { fill: var(--paper); stroke: var(--bad); stroke-width: 2; } .sign.end { fill: var(--bad); }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; color: var(--faint); font-weight: normal; font-size: 12px; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td:first-child { white-space: nowrap; }
details { margin-top: 32px; } summary { cursor: pointer; color: var(--faint); }
@media print { body { padding: 0; } .row { break-inside: avoid; } }
"""
