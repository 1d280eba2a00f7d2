//! Runs of a step as lanes over time, one above the other, and a page of its own that shows them.

use crate::svg::escaped;
use crate::text::visible;
use std::fmt::Write as _;

/// A run of a step.
#[derive(Clone, Debug, Default)]
pub struct TimedRun {
    /// What it is, such as "as it came".
    pub name: String,
    /// When it ends, in nanoseconds.
    pub end_ns: u64,
    /// What runs side by side.
    pub lanes: Vec<TimedLane>,
}

/// One stream of a run.
#[derive(Clone, Debug, Default)]
pub struct TimedLane {
    /// What it is, such as the name of a group.
    pub name: String,
    /// What it does, in order of time.
    pub spans: Vec<TimedSpan>,
}

/// A stretch of time.
#[derive(Clone, Debug)]
pub struct TimedSpan {
    /// What runs.
    pub name: String,
    /// One of `compute`, `pack`, `wait`, `unpack` and `comm`: what colour it has.
    pub what: &'static str,
    /// From the start of the step, in nanoseconds.
    pub start_ns: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
    /// More of it, line by line, shown where the pointer is.
    pub notes: Vec<String>,
}

/// What a span is in which computation stands still.
pub(super) const WAIT: &str = "wait";

/// What spans may be: a word, its colour, and what it stands for.
pub(super) const KINDS: [(&str, &str, &str); 5] = [
    ("compute", "#7aa6d6", "a call that computes"),
    ("comm", "#5fae7b", "a message, from its start to its end"),
    (WAIT, "#d9534f", "computation stands still for a message"),
    ("pack", "#e0a84e", "members are copied into a bucket"),
    ("unpack", "#c98fd0", "members are copied out of a bucket"),
];

/// The colour of what a span is.
pub(super) fn colour(what: &str) -> &'static str {
    KINDS.iter().find(|(kind, ..)| *kind == what).map_or("#999999", |(_, colour, _)| colour)
}

/// A page that shows runs above one another at one scale, with nothing else to load. The wheel zooms, dragging moves, a
/// double click shows all, the name under the pointer is shown, and a search marks names. Equal runs give equal bytes; their size
/// is linear in the spans.
#[must_use]
pub fn timeline_html(title: &str, runs: &[TimedRun]) -> String {
    let title = escaped(&visible(title));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>{STYLE}</style></head>\n\
         <body><header><h1>{title}</h1><label>find <input id=\"find\" type=\"search\"></label><span id=\"found\"></span>\n\
         <span class=\"help\">wheel: zoom; drag: move; double click: all</span></header>\n<main id=\"runs\"></main>\n\
         <div id=\"tip\" hidden></div>\n<script>\nconst RUNS = ["
    );
    for run in runs {
        let _ = write!(page, "\n{{name:{},end:{},lanes:[", literal(&run.name), run.end_ns);
        for lane in &run.lanes {
            let _ = write!(page, "\n{{name:{},spans:[", literal(&lane.name));
            for span in &lane.spans {
                let TimedSpan { name, what, start_ns, ns, notes } = span;
                let _ = write!(page, "[{start_ns},{ns},{},{},{}],", literal(name), literal(what), lines(notes));
            }
            page.push_str("]},");
        }
        page.push_str("]},");
    }
    let colours: String = KINDS.iter().map(|(what, colour, _)| format!("{what}:\"{colour}\",")).collect();
    let _ = write!(page, "];\nconst COLOURS = {{{colours}}};{SCRIPT}</script></body></html>\n");
    page
}

/// A text as a script has it, which ends neither the text nor the script.
fn literal(text: &str) -> String {
    format!("\"{}\"", within(text))
}

/// Lines as one such text.
fn lines(lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| within(line)).collect();
    format!("\"{}\"", lines.join("\\n"))
}

/// What stands between the quotes of a literal.
fn within(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in visible(text).chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '<' | '>' | '&' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
    out
}

const STYLE: &str = "
body{font:13px system-ui,sans-serif;margin:0;color:#222;background:#fff}
header{display:flex;gap:1.5em;align-items:baseline;padding:.6em 1em;border-bottom:1px solid #ddd}
h1{font-size:15px;margin:0}.help,#found{color:#777}
section{padding:.4em 1em}h2{font-size:13px;margin:.3em 0}canvas{display:block;width:100%;cursor:grab}
#tip{position:fixed;background:#222;color:#fff;padding:.4em .6em;border-radius:4px;pointer-events:none;white-space:pre;max-width:60em}
";

const SCRIPT: &str = r##"
const LABEL = 130, ROW = 24, AXIS = 18;
const end = Math.max(1, ...RUNS.map(run => run.end));
let from = 0, to = end, wanted = "";
const time = ns => ns < 1e3 ? `${Math.round(ns)} ns` : ns < 1e6 ? `${(ns / 1e3).toFixed(1)} us` : `${(ns / 1e6).toFixed(3)} ms`;
const views = RUNS.map(run => {
  const section = document.createElement("section"), head = document.createElement("h2"), canvas = document.createElement("canvas");
  head.textContent = `${run.name}: ${time(run.end)}`;
  section.append(head, canvas);
  document.getElementById("runs").append(section);
  return {run, canvas};
});
// The first span of a lane that ends after a time: spans are in order of time.
function first(spans, at) {
  let low = 0, high = spans.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (spans[mid][0] + spans[mid][1] > at) high = mid; else low = mid + 1;
  }
  return low;
}
function draw({run, canvas}) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = run.lanes.length * ROW + AXIS;
  canvas.style.height = height + "px";
  canvas.width = width * scale;
  canvas.height = height * scale;
  const c = canvas.getContext("2d");
  c.scale(scale, scale);
  c.font = "12px system-ui,sans-serif";
  c.textBaseline = "middle";
  const x = ns => LABEL + (ns - from) / (to - from) * (width - LABEL);
  run.lanes.forEach((lane, index) => {
    const y = index * ROW;
    c.fillStyle = "#f4f4f4";
    c.fillRect(LABEL, y + 1, width - LABEL, ROW - 2);
    let drawn = -1;
    for (let at = first(lane.spans, from); at < lane.spans.length && lane.spans[at][0] < to; at++) {
      const [start, ns, name, what] = lane.spans[at];
      const left = Math.max(LABEL, x(start)), right = Math.min(width, x(start + ns));
      const marked = wanted && name.toLowerCase().includes(wanted);
      // What is narrower than half a pixel is drawn with its neighbours.
      if (right - left < .5 && left < drawn + .5 && !marked) continue;
      drawn = Math.max(right, left + .5);
      c.fillStyle = marked ? "#111" : COLOURS[what] || "#999";
      c.fillRect(left, y + 2, Math.max(.5, right - left - (right - left > 3 ? 1 : 0)), ROW - 4);
      if (right - left > 40) {
        c.save();
        c.beginPath();
        c.rect(left, y, right - left - 3, ROW);
        c.clip();
        c.fillStyle = "#fff";
        c.fillText(name, left + 3, y + ROW / 2);
        c.restore();
      }
    }
    c.fillStyle = "#fff";
    c.fillRect(0, y, LABEL - 4, ROW);
    c.fillStyle = "#222";
    c.fillText(lane.name, 0, y + ROW / 2, LABEL - 8);
  });
  c.fillStyle = "#777";
  for (let tick = 0; tick <= 8; tick++) {
    const ns = from + (to - from) * tick / 8;
    c.textAlign = tick === 8 ? "right" : "left";
    c.fillText(time(ns), x(ns), run.lanes.length * ROW + AXIS / 2);
  }
  if (run.end >= from && run.end <= to) c.fillRect(x(run.end), 0, 1, run.lanes.length * ROW);
}
const drawAll = () => views.forEach(draw);
function clamp() {
  const span = Math.min(end, Math.max(10, to - from));
  from = Math.min(Math.max(0, from), end - span);
  to = from + span;
}
const at = (canvas, event) => {
  const box = canvas.getBoundingClientRect();
  return from + (event.clientX - box.left - LABEL) / (box.width - LABEL) * (to - from);
};
const tip = document.getElementById("tip");
let grabbed = null;
for (const {run, canvas} of views) {
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const centre = at(canvas, event), by = Math.exp(event.deltaY * .002);
    [from, to] = [centre - (centre - from) * by, centre + (to - centre) * by];
    clamp();
    drawAll();
  }, {passive: false});
  canvas.addEventListener("dblclick", () => { [from, to] = [0, end]; drawAll(); });
  canvas.addEventListener("mousedown", event => { grabbed = {x: event.clientX, from, to, width: canvas.clientWidth - LABEL}; });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("mousemove", event => {
    if (grabbed) return;
    const box = canvas.getBoundingClientRect(), lane = run.lanes[Math.floor((event.clientY - box.top) / ROW)], now = at(canvas, event);
    const span = lane && lane.spans[first(lane.spans, now)];
    tip.hidden = !span || span[0] > now || event.clientX - box.left < LABEL;
    if (tip.hidden) return;
    tip.textContent = `${span[3]} ${span[2]}\n${time(span[1])}, from ${time(span[0])} to ${time(span[0] + span[1])}${span[4] ? "\n" + span[4] : ""}`;
    tip.style.left = Math.min(event.clientX + 12, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
}
window.addEventListener("mousemove", event => {
  if (!grabbed) return;
  const by = (grabbed.x - event.clientX) / grabbed.width * (grabbed.to - grabbed.from);
  [from, to] = [grabbed.from + by, grabbed.to + by];
  clamp();
  drawAll();
});
window.addEventListener("mouseup", () => { grabbed = null; });
window.addEventListener("resize", drawAll);
document.getElementById("find").addEventListener("input", event => {
  wanted = event.target.value.trim().toLowerCase();
  const count = wanted ? RUNS.flatMap(run => run.lanes).flatMap(lane => lane.spans).filter(span => span[2].toLowerCase().includes(wanted)).length : 0;
  document.getElementById("found").textContent = wanted ? `${count} found` : "";
  drawAll();
});
drawAll();
"##;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_holds_each_span_once_and_loads_nothing() {
        let span = |name: &str, start_ns| TimedSpan {
            name: name.into(),
            what: "comm",
            start_ns,
            ns: 5,
            notes: vec!["4 B in group \"dp\"".into(), "hides".into()],
        };
        let lane = TimedLane { name: "dp".into(), spans: vec![span("a", 0), span("b", 7)] };
        let run = TimedRun { name: "planned".into(), end_ns: 12, lanes: vec![lane] };
        let page = timeline_html("a step", &[run]);
        assert_eq!(page.matches(r#"[7,5,"b","comm","4 B in group \"dp\"\nhides"]"#).count(), 1, "{page}");
        for outside in ["http:", "https:", "src=", "import ", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn names_end_neither_the_script_nor_their_text() {
        let name = "</script><b>\"\\\n\u{2028}";
        let span = TimedSpan { name: name.into(), what: "compute", start_ns: 0, ns: 1, notes: Vec::new() };
        let lanes = vec![TimedLane { name: name.into(), spans: vec![span] }];
        let page = timeline_html(name, &[TimedRun { name: name.into(), end_ns: 1, lanes }]);
        assert_eq!((page.matches("</script>").count(), page.matches("<b>").count()), (1, 0), "{page}");
        assert!(page.contains(r#""\u003c/script\u003e\u003cb\u003e\"\\\\n\\u{2028}""#), "{page}");
    }
}
