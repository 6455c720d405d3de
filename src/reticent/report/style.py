"""How a report looks: two palettes, one style sheet.

Colours are custom properties, for charts too, so that one page is right in light and in dark. Every
colour that carries text or a line stands out from the page by 4.5 : 1 or more (WCAG 2.2, 1.4.3).
"""

from __future__ import annotations

LIGHT = {
    "page": "#f8f7f4",
    "card": "#ffffff",
    "ink": "#1c2127",
    "soft": "#565e68",
    "rule": "#dedbd3",
    "tint": "#eef3f7",
    "link": "#175a8c",
    "warn": "#8a3b12",
    "warn-card": "#fdf3ea",
    "good": "#22693f",
    "c1": "#175a8c",
    "c2": "#a8480f",
    "c3": "#1d6f4f",
    "c4": "#84408f",
    "c5": "#7a5a00",
    "c6": "#0b6a75",
    "c7": "#a02c4b",
}
DARK = {
    "page": "#14171a",
    "card": "#1b1f23",
    "ink": "#e7e9eb",
    "soft": "#a5adb6",
    "rule": "#343a41",
    "tint": "#20272e",
    "link": "#82bdec",
    "warn": "#f0b08a",
    "warn-card": "#2b211b",
    "good": "#86cfa2",
    "c1": "#72b4e8",
    "c2": "#f0975c",
    "c3": "#6fcba3",
    "c4": "#d79be0",
    "c5": "#e0bc5a",
    "c6": "#63cad6",
    "c7": "#f28ba6",
}

_SHEET = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.6 var(--sans);
overflow-wrap:break-word}
main,header,footer{max-width:62rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:3rem}
footer{padding-top:1rem;padding-bottom:3rem;color:var(--soft);font-size:.875rem}
h1{font-size:1.9rem;line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:.2rem 0 .6rem}
h2{font-size:1.3rem;line-height:1.3;font-weight:650;letter-spacing:-.01em;margin:0 0 .75rem}
h3{font-size:1rem;line-height:1.4;font-weight:650;margin:1.75rem 0 .5rem}
p{margin:0 0 .9rem;max-width:44rem}
a{color:var(--link);text-underline-offset:.15em}
.over{color:var(--soft);font-size:.875rem;margin:0}
nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;padding:0;margin:.5rem 0 0;
font-size:.9rem}
section{margin:2.75rem 0 0;padding-top:1.75rem;border-top:1px solid var(--rule)}
section.first{border:0;padding:0;margin-top:1.75rem}
.card{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:1.5rem}
.card>:last-child,.warn>:last-child{margin-bottom:0}
.big{display:flex;flex-wrap:wrap;gap:.5rem 2.75rem;margin:0 0 1.25rem;padding:0}
.big div{min-width:6rem}
.big dt{color:var(--soft);font-size:.875rem;line-height:1.4}
.big dd{margin:0;font-size:1.9rem;line-height:1.25;font-weight:650;letter-spacing:-.02em;
font-variant-numeric:tabular-nums}
.lead{font-size:1.06rem}
sup{line-height:0;font-size:.75em}
.warn{background:var(--warn-card);border:1px solid var(--warn);border-radius:12px;
padding:1rem 1.25rem;margin:1.5rem 0 0}
.warn strong{color:var(--warn)}
.bad{color:var(--warn);font-weight:650}
.good{color:var(--good);font-weight:650}
.soft{color:var(--soft)}
.gap{margin-top:1.25rem}
.pair{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,25rem),1fr));
gap:1.25rem;align-items:start}
.stack{display:grid;gap:1.25rem;min-width:0}
figure{margin:0;min-width:0;background:var(--card);border:1px solid var(--rule);
border-radius:12px;padding:1rem 1.1rem}
figcaption{font-weight:650;line-height:1.4;margin:0 0 .15rem}
figure p{font-size:.875rem;line-height:1.5;color:var(--soft);margin:0 0 .5rem}
.chart{display:block;width:100%;height:auto;max-width:32rem;margin:.5rem auto}
.chart *{stroke-linejoin:round;stroke-linecap:butt}
ul.plain{padding-left:1.15rem;margin:0 0 .9rem;max-width:44rem}
ul.plain li{margin:0 0 .5rem}
ul.plain li::marker{color:var(--soft)}
dl.facts{margin:0;display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr));
gap:0 2rem}
dl.facts div{display:flex;gap:1rem;justify-content:space-between;padding:.4rem 0;
border-bottom:1px solid var(--rule);font-size:.9375rem;min-width:0}
dl.facts dt{color:var(--soft);flex:none;max-width:50%}
dl.facts dd{margin:0;text-align:right;font-variant-numeric:tabular-nums;min-width:0;
overflow-wrap:anywhere}
.scroll{overflow-x:auto;margin:0 0 1rem;border-radius:6px}
table{border-collapse:collapse;width:100%;font-size:.9rem;line-height:1.45;
font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);font-size:.875rem;padding:0 0 .4rem}
th,td{text-align:left;vertical-align:top;padding:.4rem .9rem .4rem 0;
border-bottom:1px solid var(--rule)}
thead th{font-weight:600;color:var(--soft)}
tbody th{font-weight:500}
.wide table{min-width:44rem}
.n{text-align:right;white-space:nowrap}
th:last-child,td:last-child{padding-right:0}
details{margin:.5rem 0 0}
summary{cursor:pointer;color:var(--link);font-size:.875rem;padding:.25rem 0}
details>.scroll{margin-top:.5rem;max-height:24rem;overflow:auto}
pre{background:var(--tint);border-radius:8px;padding:.9rem 1rem;overflow-x:auto;
font:.84rem/1.55 var(--mono);margin:0 0 1rem}
code{font-family:var(--mono);font-size:.9em;overflow-wrap:anywhere}
pre code{font-size:1em;overflow-wrap:normal}
:focus-visible{outline:2px solid var(--link);outline-offset:2px;border-radius:3px}
@media (max-width:34rem){header{padding-top:1.75rem}h1{font-size:1.5rem}
.card{padding:1.1rem}.big dd{font-size:1.5rem}figure{padding:.85rem .75rem}
section{margin-top:2rem;padding-top:1.4rem}}
@media print{:root{LIGHT}body{background:#fff;font-size:10.5pt}
main,header,footer{max-width:none;padding:0}nav,summary{display:none}
header{padding-top:0}section{margin-top:1.2rem;padding-top:1rem}
figure,.card,.warn,tr{break-inside:avoid}h2,h3{break-after:avoid}
.scroll,details>.scroll{overflow:visible;max-height:none}
pre{white-space:pre-wrap;overflow:visible}
details::details-content{content-visibility:visible;block-size:auto}
a{color:inherit;text-decoration:none}}
"""

_FONTS = (
    '--sans:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;'
    "--mono:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
)


def _properties(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in palette.items())


def sheet() -> str:
    """The style sheet of a page."""
    light, dark = _properties(LIGHT), _properties(DARK)
    return (
        f":root{{color-scheme:light dark;{_FONTS}{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}" + _SHEET.replace("LIGHT", light)
    )


def contrast(one: str, other: str) -> float:
    """The contrast of two colours (WCAG 2.2, relative luminance): 1 to 21.

    >>> round(contrast("#000000", "#ffffff"), 6)
    21.0
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
