//! `convert`: a file of graphs in another form.

use crate::fault::InputFault;
use crate::input::{Files, GraphArgs};
use crate::{ExitStatus, input, output, talk};
use anyhow::{Result, bail};
use bucketeer_formats::{Document, Format};
use std::path::PathBuf;

/// Writes a graph in another form
///
/// Without --to, the ending of OUT decides: .txt and .py are FX text, .hlo is HLO text, .pt2 is an archive of
/// torch.export, .bkt is native text, .json is JSON. Gzip is read, never written.
#[derive(Debug, clap::Args)]
pub struct ConvertArgs {
    /// The file to read; `-` is stdin
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The file to write; `-` is stdout
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// The form to write
    #[arg(long, value_name = "FORMAT")]
    to: Option<FormatWord>,
    /// Write FX text without what logs and terminals add to it, and nothing but the graphs
    #[arg(long)]
    clean: bool,
    #[command(flatten)]
    graph: GraphArgs,
}

/// The forms, as options name them.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum FormatWord {
    /// PyTorch FX text
    Fx,
    /// A program of torch.export; only of what was read as one
    Export,
    /// XLA HLO text; only of what was read as HLO text
    Hlo,
    /// Bucketeer's own text
    Native,
    /// Bucketeer's own JSON
    Json,
}

impl From<FormatWord> for Format {
    fn from(word: FormatWord) -> Self {
        match word {
            FormatWord::Fx => Self::Fx,
            FormatWord::Export => Self::Export,
            FormatWord::Hlo => Self::Hlo,
            FormatWord::Native => Self::Native,
            FormatWord::Json => Self::Json,
        }
    }
}

/// Runs the command.
pub fn run(arguments: &ConvertArgs) -> Result<ExitStatus> {
    let extension = arguments.out.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    let to = match arguments.to {
        Some(word) => word.into(),
        None => match Format::of_extension(extension) {
            Some(format) => format,
            None => bail!(
                "no form given: `{}` ends in none of .txt, .py (FX), .hlo (HLO), .pt2 (torch.export), .bkt (native), \
                 .json; say --to fx, hlo, export, native or json",
                arguments.out.display()
            ),
        },
    };
    let mut document = input::read_document(&arguments.input, &Files::on_disk())?;
    let several = document.graphs().len();
    arguments.graph.apply(&mut document)?;
    if arguments.clean && (document.format() != Format::Fx || to != Format::Fx) {
        bail!("--clean: logs hold FX text; {} is read and {} written", document.format().title(), to.title());
    }
    let only_one = document.graphs().len() < several && to == Format::Fx;
    if let Some(text) = document.cleaned().filter(|_| arguments.clean || only_one) {
        output::write(Some(&arguments.out), text.as_bytes())?;
        return Ok(ExitStatus::Accepted);
    }
    let converted = to_format(document, to, &input::label(&arguments.input))?;
    output::write(Some(&arguments.out), &converted)?;
    Ok(ExitStatus::Accepted)
}

/// A document in another form; what is left out is said.
pub fn to_format(document: Document, to: Format, label: &str) -> Result<Document> {
    let losses = document.losses(to);
    let converted = document.convert(to).map_err(|error| InputFault::of_file(label, error))?;
    if !losses.is_empty() {
        talk::warn(&format!("{} has no words for these, so they are left out: {}", to.title(), losses.join(", ")));
    }
    Ok(converted)
}
