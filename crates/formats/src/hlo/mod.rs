//! XLA HLO text, as `--xla_dump_to` and `compiled.as_text()` print it.
//!
//! Reading keeps the text and understands only what is needed: names, shapes, and what collectives do. Printing gives back
//! the same bytes where nothing changed.
//!
//! * `lex`: names, brackets, strings and comments;
//! * `inlined`: bodies that stand where a name would, in XLA's canonical print;
//! * `module`: the text as ranges of bytes: computations, instructions, attributes;
//! * `shape`, `groups`, `attributes`: what is inside of them;
//! * `opcodes`, `calls`, `domains`, `reducers`, `collective`, `layout`: what the graph needs to know of opcodes, calls,
//!   sharding domains, reductions, collectives and instructions that move elements;
//! * `work`: how much instructions compute;
//! * `graph`: the module as a graph;
//! * `write`, `emit`, `notes`: the text again, with what changed;
//! * `listed`: the text with groups as lists.

mod attributes;
mod calls;
mod collective;
mod domains;
mod emit;
mod error;
mod graph;
mod groups;
mod inlined;
mod layout;
mod lex;
mod listed;
mod module;
mod notes;
mod opcodes;
mod reducers;
mod shape;
mod work;
mod write;

pub use error::HloError;

use bucketeer::ir::{Graph, NodeId};
use graph::Links;
use module::Module;

/// A module: its text, and its graph.
#[derive(Clone, Debug)]
pub struct HloText {
    /// The text as it was read, if bodies in it had no names.
    original: Option<Box<str>>,
    source: Box<str>,
    module: Module,
    links: Links,
    graph: [Graph; 1],
}

impl HloText {
    /// Reads a text.
    ///
    /// # Errors
    /// [`HloError`], with the place of the first fault.
    pub fn parse(text: String) -> Result<Self, HloError> {
        let build = |text: &str| {
            let mut module = Module::read(text)?;
            let (graph, links) = graph::build(text, &mut module)?;
            Ok((module, graph, links))
        };
        let (original, (module, graph, links), source) = match inlined::hoisted(&text) {
            Some(hoisted) => {
                let in_text = |fault: error::Fault| {
                    let at = hoisted.original(fault.at);
                    error::Fault { at, ..fault }.in_text(&text)
                };
                let built = build(&hoisted.text).map_err(in_text)?;
                (Some(text.into_boxed_str()), built, hoisted.text)
            }
            None => (None, build(&text).map_err(|fault: error::Fault| fault.in_text(&text))?, text),
        };
        let mut read = Self { original, source: source.into_boxed_str(), module, links, graph: [graph] };
        read.graph[0].scheduled = read.is_scheduled();
        Ok(read)
    }

    /// The text as it was read.
    #[must_use]
    pub fn source(&self) -> &str {
        self.original.as_deref().unwrap_or(&self.source)
    }

    /// Whether the header says that the order of the text is a schedule.
    #[must_use]
    pub fn is_scheduled(&self) -> bool {
        let states = |attribute: &module::Attribute| {
            (attribute.key.of(&self.source), attribute.value.of(&self.source)) == ("is_scheduled", "true")
        };
        self.module.header.iter().any(states)
    }

    /// What the header suggests as cap for what is pipelined or synchronous, in bytes: `suggested_combiner_threshold`.
    #[must_use]
    pub fn suggested_cap_bytes(&self) -> Option<u64> {
        let is_frontend = |attribute: &&module::Attribute| attribute.key.of(&self.source) == "frontend_attributes";
        let frontend = self.module.header.iter().find(is_frontend)?.value.of(&self.source);
        attributes::entry(frontend, "suggested_combiner_threshold")?.parse().ok()
    }

    /// The same module, as it was read, with every group as a list of devices: `mesh['x'=2,'y'=2] {'y'}` becomes
    /// `{{0,1},{2,3}}`. What was edited is not in it.
    ///
    /// # Errors
    /// [`HloError`], if the lists would be too long to write.
    pub fn with_listed_groups(&self) -> Result<Self, HloError> {
        let text = listed::listed(&self.source, &self.module).map_err(|fault| fault.in_text(&self.source))?;
        Self::parse(text)
    }

    /// The graph of the module.
    #[must_use]
    pub const fn graphs(&self) -> &[Graph; 1] {
        &self.graph
    }

    /// The graph, to edit.
    pub const fn graphs_mut(&mut self) -> &mut [Graph; 1] {
        &mut self.graph
    }

    /// The text. Where nothing changed, its bytes are those that were read.
    #[must_use]
    pub fn print(&self) -> Vec<u8> {
        let printed = write::print(&self.source, &self.module, &self.links, &self.graph[0]);
        match &self.original {
            Some(original) if printed == self.source.as_bytes() => original.as_bytes().to_vec(),
            _ => printed,
        }
    }
}

/// The devices of groups as HLO text writes them, such as `mesh['x'=2,'y'=4] {'y'}`; `None` if they cannot be read.
pub(super) fn listed_groups(text: &str) -> Option<Vec<Vec<u32>>> {
    groups::replica_groups(text).ok()
}

/// Whether a text begins as HLO text does: with `HloModule`, comments aside.
pub(super) fn begins(bytes: &[u8]) -> bool {
    let mut rest = bytes.trim_ascii_start();
    loop {
        rest = match rest {
            [b'/', b'/', ..] => memchr::memchr(b'\n', rest).map_or(&[][..], |end| &rest[end..]),
            [b'/', b'*', ..] => memchr::memmem::find(rest, b"*/").map_or(&[][..], |end| &rest[end + 2..]),
            _ => return rest.strip_prefix(b"HloModule").is_some_and(|rest| rest.starts_with(b" ")),
        };
        rest = rest.trim_ascii_start();
    }
}

/// The graph with names of letters, digits and `_`, as the other forms want them.
pub(super) fn with_plain_names(graph: &Graph) -> Graph {
    let mut plain = graph.clone();
    plain.stop_edit_log();
    let mut used = hashbrown::HashSet::<String, rustc_hash::FxBuildHasher>::default();
    let mut next = hashbrown::HashMap::<String, u32, rustc_hash::FxBuildHasher>::default();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for id in graph.order().iter().copied() {
        let stem: String = graph.name_of(id).chars().map(|c| if is_word(c) { c } else { '_' }).collect();
        let number = next.entry(stem.clone()).or_insert(0);
        let mut name = stem.clone();
        while !used.insert(name.clone()) {
            *number += 1;
            name = format!("{stem}_{number}");
        }
        let name = plain.intern(&name);
        plain.node_mut(NodeId::from_index(id.index())).name = name;
    }
    plain
}
