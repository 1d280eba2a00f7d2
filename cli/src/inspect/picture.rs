//! `inspect --dot` and `--svg`: the collectives as a picture.

use crate::buckets::{self, Passes};
use crate::fault::{InputFault, OptionFault};
use crate::talk;
use anyhow::{Result, anyhow};
use bucketeer::passes::PipelineError;
use bucketeer_draw::buckets::Buckets;
use bucketeer_draw::{Drawing, Lanes, dot, lanes_svg, svg};
use bucketeer_formats::Document;

/// What to draw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Text for Graphviz.
    Dot,
    /// SVG.
    Svg,
    /// SVG, by program order.
    Lanes,
}

/// So many collectives fit into a picture that a person can read.
const MOST_IN_SIGHT: usize = 1000;

/// Draws all graphs of a document, with the buckets that these passes would make.
pub fn draw(label: &str, document: &Document, mut passes: Passes, form: Form) -> Result<String> {
    passes.fit_to(&buckets::Form::of(document)).map_err(OptionFault::of)?;
    passes.notes.iter().for_each(|note| talk::say(note));
    let (mut drawings, mut lanes) = (Vec::new(), Vec::new());
    for (index, graph) in document.graphs().iter().enumerate() {
        passes.warn_of_strangers(graph);
        let drawn = Buckets::planned(graph, &passes.pipeline).map_err(|error| match error {
            PipelineError::Input(errors) => InputFault::of_verify(label, document, index, &errors).into(),
            error => anyhow!(error).context(format!("{label}: graph `{}`", graph.name)),
        })?;
        if form == Form::Lanes {
            lanes.push(Lanes::of(graph, &drawn));
            continue;
        }
        let drawing = Drawing::of(graph, &drawn);
        if drawing.collective_count() > MOST_IN_SIGHT {
            talk::advise(&format!(
                "graph `{}` has {} collectives, more than a person can see at once; --svg --lanes draws them by \
                 program order",
                graph.name,
                drawing.collective_count()
            ));
        }
        drawings.push(drawing);
    }
    Ok(match form {
        Form::Dot => dot(&drawings),
        Form::Svg => svg(&drawings),
        Form::Lanes => lanes_svg(&lanes),
    })
}
