//! The options of `rewrite`: as typed, then as validated.

use crate::buckets::{BucketArgs, Form, Passes, SwitchWord};
use crate::convert::FormatWord;
use crate::input::{self, Facts, FactsArgs};
use crate::output::{RANK, of_rank};
use anyhow::{Result, bail};
use bucketeer_formats::{Document, Format};
use std::path::{Path, PathBuf};

/// Merges collectives into buckets and writes the graph back
///
/// One graph is for all ranks. Where ranks have graphs of their own, give all of them, rank 0's first: they are rewritten
/// together, so that all merge the same and none wait for one another in a ring.
///
/// A CAP is the most bytes of a bucket: 25MB (10^6), 25MiB (2^20) or plain bytes; a list such as 1MiB,25MiB for the
/// first bucket of each kind and group, the second, and so on (the last goes for all further ones); `none` for no
/// limit; `off` to leave the kind alone. If no kind is given, gathers and scatters are bucketed up to 256 MiB and
/// all-reduces up to 25 MiB; if one is given, only those that are given.
///
/// --memory caps the bytes alive at once, as for `plan`: `normal` is what the graph needs as it came and 1 GiB or 5 %,
/// whichever is more; `same` is what it needs as it came; `+5%` is that much more; a size such as 80GB; `none` is no limit.
/// A bucket that would pass it is cut, and --explain says where.
#[derive(Debug, clap::Args)]
pub struct RewriteArgs {
    /// The file of all ranks, or that of each ('rank{rank}.txt' is one for each rank): FX text, HLO text, a .pt2 archive or its model.json,
    /// native text or JSON, plain or gzip; `-` is stdin
    #[arg(value_name = "GRAPH", required = true)]
    graphs: Vec<PathBuf>,
    #[command(flatten)]
    buckets: BucketArgs,
    /// Rewrite scheduled HLO text, too: merge only where nothing between depends on a member, so that no other
    /// instruction changes its place
    #[arg(long)]
    keep_schedule: bool,
    /// How to spell the groups of all collectives of HLO text
    #[arg(long, value_name = "SPELLING", default_value = "as-read")]
    groups_as: GroupsWord,
    #[command(flatten)]
    facts: FactsArgs,
    /// Whether to prove that the result computes what the graph does; by default where that takes less than about a
    /// second. If asked for, a graph that cannot be proven is not written
    #[arg(long, value_name = "on|off", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    verify: Option<SwitchWord>,
    /// Say of every collective where it went, or why it was left alone
    #[arg(long)]
    explain: bool,
    /// Report as JSON, on stdout; the graph is then written only with -o
    #[arg(long)]
    json: bool,
    /// Say how large the graph is and how long each pass took
    #[arg(long)]
    stats: bool,
    /// Do all of the work, the proof included, and say what came of it, but write nothing
    #[arg(long, conflicts_with = "json")]
    dry_run: bool,
    /// Where to write the graph; may be the file that was read [default: stdout]. Of several graphs each has its own:
    /// `{rank}` in OUT stands for the rank
    #[arg(short, long, value_name = "OUT")]
    out: Option<PathBuf>,
    /// The form to write, if not that of the file that was read
    #[arg(long, value_name = "FORMAT")]
    to: Option<FormatWord>,
}

/// How groups of HLO text are spelled, as the option names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum GroupsWord {
    /// As they were read
    AsRead,
    /// As lists of devices, for readers that do not know all spellings
    Lists,
}

/// What to do, as validated.
#[derive(Debug)]
pub struct Job {
    /// The files to rewrite: one for all ranks, or one for each.
    pub graphs: Vec<PathBuf>,
    /// The passes to run.
    pub passes: Passes,
    /// Whether to rewrite what is scheduled.
    keep_schedule: bool,
    /// Whether groups of HLO text are written as lists.
    list_groups: bool,
    pub facts: Facts,
    /// Whether to prove the result, if it was said.
    pub verify: Option<SwitchWord>,
    pub explain: bool,
    pub json: bool,
    pub stats: bool,
    /// Whether nothing is to be written.
    pub dry_run: bool,
    pub out: Option<PathBuf>,
    pub to: Option<Format>,
}

impl RewriteArgs {
    /// Checks the options, all before any work.
    pub fn validate(self) -> Result<Job> {
        let graphs = input::expand(self.graphs)?;
        let mut passes = self.buckets.validate()?;
        if self.out.as_ref().is_some_and(|out| out.extension().is_some_and(|extension| extension == "gz")) {
            passes.notes.push("note: the output is plain text, whatever its name ends in".to_owned());
        }
        let out = self.out.filter(|out| out.as_os_str() != "-");
        if graphs.len() > 1 {
            check_out_of_ranks(out.as_deref(), self.json)?;
        }
        Ok(Job {
            graphs,
            passes,
            keep_schedule: self.keep_schedule,
            list_groups: self.groups_as == GroupsWord::Lists,
            facts: self.facts.validate()?,
            verify: self.verify,
            explain: self.explain,
            json: self.json,
            stats: self.stats,
            dry_run: self.dry_run,
            out,
            to: self.to.map(Format::from),
        })
    }
}

/// Where the graphs of several ranks go must be said, and differ by rank.
pub fn check_out_of_ranks(out: Option<&Path>, json: bool) -> Result<()> {
    match out {
        None if json => Ok(()),
        None => bail!("several graphs are rewritten to several files; say where, such as -o 'rank{{rank}}.txt'"),
        Some(out) if !out.to_string_lossy().contains(RANK) => {
            bail!("-o {}: several graphs need `{RANK}` in it, for the rank that each is for", out.display())
        }
        Some(_) => Ok(()),
    }
}

impl Job {
    /// Fits the passes to the form of the file. Refuses what the form has no words for, and modules that are scheduled.
    pub fn fit_to(&mut self, form: &Form<'_>) -> Result<()> {
        if form.is_scheduled && !self.keep_schedule {
            bail!(
                "the module is scheduled (`is_scheduled=true`): the order of its text was chosen for it, and a merge \
                 moves instructions; rewrite a dump from before the schedule, such as one of `--xla_dump_hlo_pass_re`, \
                 or say --keep-schedule to merge only what moves no other instruction"
            );
        }
        if form.is_scheduled && self.graphs.len() > 1 {
            bail!("scheduled modules of several ranks are not rewritten together");
        }
        self.passes.fit_to(form)
    }

    /// Spells groups as was asked for.
    pub fn spell_groups(&self, document: &mut Document) -> Result<()> {
        if !self.list_groups {
            return Ok(());
        }
        if document.format() != Format::Hlo {
            bail!("--groups-as lists is for HLO text: groups have one spelling in other forms");
        }
        Ok(document.list_groups()?)
    }

    /// The file that a rank's graphs are written to.
    pub fn out_of_rank(&self, rank: u32) -> Option<PathBuf> {
        self.out.as_ref().map(|out| of_rank(out, rank))
    }
}
