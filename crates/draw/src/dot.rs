//! A drawing as text for Graphviz.

use super::text::cut;
use super::{Drawing, fill};
use std::fmt::Write;

/// Columns of a label.
const COLUMNS: usize = 32;

/// Writes drawings as one directed graph, each in a frame of its own if there are several: `dot -Tsvg` draws it.
#[must_use]
pub fn dot(drawings: &[Drawing]) -> String {
    let mut out = String::from("digraph collectives {\n  rankdir=TB;\n");
    out += "  node [shape=box, style=filled, fillcolor=\"#ffffff\", fontname=\"monospace\", fontsize=10];\n";
    out += "  edge [color=\"#555555\", arrowsize=0.6];\n";
    let several = drawings.len() > 1;
    for (nth, drawing) in drawings.iter().enumerate() {
        if several {
            let _ = writeln!(out, "  subgraph cluster_graph_{nth} {{");
            let _ = writeln!(out, "  label={};", quoted(&drawing.title));
        } else {
            let _ = writeln!(out, "  label={}; labelloc=t;", quoted(&drawing.title));
        }
        legend(&mut out, nth, drawing);
        graph(&mut out, nth, drawing);
        if several {
            out += "  }\n";
        }
    }
    out + "}\n"
}

fn graph(out: &mut String, nth: usize, drawing: &Drawing) {
    let id = |item: usize| format!("g{nth}_{item}");
    let mut boxes = drawing.boxes.iter();
    for (at, item) in drawing.items.iter().enumerate() {
        if item.node.is_none() {
            let _ = writeln!(out, "  {} [shape=point, width=0.08, label=\"\"];", id(at));
            continue;
        }
        let one = boxes.next().expect("there is a box for each collective");
        let group = cut(&one.group, COLUMNS.saturating_sub(one.place.len() + 2));
        let lines = [cut(&one.name, COLUMNS), cut(&one.what, COLUMNS), format!("{group}, {}", one.place)];
        let border = if one.merged { ", peripheries=2" } else { "" };
        let _ = writeln!(
            out,
            "  {} [label={}, tooltip={}, fillcolor=\"{}\"{border}];",
            id(at),
            quoted(&lines.join("\n")),
            quoted(&one.details.join("\n")),
            fill(one.bucket)
        );
    }
    for (at, item) in drawing.items.iter().enumerate() {
        let head = if item.node.is_none() { " [arrowhead=none]" } else { "" };
        for &source in &item.sources {
            let _ = writeln!(out, "  {} -> {}{head};", id(source as usize), id(at));
        }
    }
}

fn legend(out: &mut String, nth: usize, drawing: &Drawing) {
    let rows: Vec<_> = drawing.legend().collect();
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "  subgraph cluster_legend_{nth} {{");
    out.push_str("    label=\"legend\"; fontname=\"monospace\"; fontsize=10; color=\"#999999\";\n");
    for (row, (fill, words)) in rows.iter().enumerate() {
        let _ = writeln!(out, "    legend_{nth}_{row} [label={}, fillcolor=\"{fill}\"];", quoted(words));
    }
    for row in 1..rows.len() {
        let _ = writeln!(out, "    legend_{nth}_{} -> legend_{nth}_{row} [style=invis];", row - 1);
    }
    out.push_str("  }\n");
}

/// A string of Graphviz. In it `\` escapes, and `&` begins an entity.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '&' => quoted.push_str("&amp;"),
            '<' => quoted.push_str("&lt;"),
            '>' => quoted.push_str("&gt;"),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
