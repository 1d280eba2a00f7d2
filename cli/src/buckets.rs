//! What to merge, as options say it: as typed, then as validated.

use crate::talk;
use anyhow::{Context, Result, anyhow, bail};
use bucketeer::ir::{CollectiveKind, Graph};
use bucketeer::passes::bucketing::{BucketKind, BucketOptions, MixedDtype, Mode, Unpack, matches_pattern};
use bucketeer::passes::options::{BucketOption, OPTIONS, OptionError, Values, Word};
use bucketeer::passes::select::Policy;
use bucketeer::passes::{Pass, Pipeline};
use bucketeer_formats::{Document, Format};
use bucketeer_types::sizes::{format_bytes, parse_bytes};
use clap::ArgAction;
use clap::builder::{PossibleValue, PossibleValuesParser};

/// Which collectives to merge, and how.
#[derive(Clone, PartialEq, Eq, Default, Debug, clap::Args)]
pub struct BucketArgs {
    /// Bucket all-gathers
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    all_gather: Option<String>,
    /// Bucket reduce-scatters
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    reduce_scatter: Option<String>,
    /// Bucket all-reduces
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    all_reduce: Option<String>,
    /// Bucket broadcasts
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    broadcast: Option<String>,
    /// Bucket all-to-alls in which every pair of ranks exchanges equally much
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    all_to_all: Option<String>,
    /// Bucket permutes of the same pairs; not in FX text, for PyTorch has no word for the result
    #[arg(long, value_name = "CAP", allow_hyphen_values = true)]
    permute: Option<String>,
    /// Cap of the first bucket of each kind and group, before those of CAP
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    first_bucket: Option<String>,
    #[command(flatten)]
    rest: BucketOptionArgs,
    /// Send a tensor once where the graph sends it again; keeps results alive for longer
    #[arg(long)]
    dedupe_collectives: bool,
    /// The passes to run, in text form, instead of the options above
    #[arg(long, value_name = "TEXT", conflicts_with_all = [
        "all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all", "permute", "first_bucket",
        "dedupe_collectives",
    ])]
    pipeline: Option<String>,
}

/// The options of the passes that the command line has, as [`OPTIONS`] says them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct BucketOptionArgs {
    /// By place in [`OPTIONS`]: what was given.
    given: Vec<(&'static BucketOption, Vec<String>)>,
}

/// The option's name on the command line, where each value of a list is given by itself. None if a kind's own option, or
/// the file, says it.
fn flag(option: &BucketOption) -> Option<&'static str> {
    match option.name {
        "cap" | "suggested" => None,
        "groups" => Some("group"),
        "names" => Some("only"),
        name => Some(name),
    }
}

impl clap::Args for BucketOptionArgs {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for option in OPTIONS {
            let Some(flag) = flag(option) else { continue };
            let repeated = if option.values == Values::List { "; may be repeated" } else { "" };
            let default = match (option.values, option.default) {
                (Values::List, _) | (_, "") => String::new(),
                (_, default) => format!(" [default: {default}]"),
            };
            let help = format!("{}{repeated}{default}", option.help);
            let arg = clap::Arg::new(flag).long(flag).help(help).conflicts_with("pipeline");
            let choice = |words: &[Word]| {
                let value = |word: &Word| match word.help {
                    "" => PossibleValue::new(word.word),
                    help => PossibleValue::new(word.word).help(help),
                };
                PossibleValuesParser::new(words.iter().map(value))
            };
            let list = |words: &[Word]| words.iter().map(|word| word.word).collect::<Vec<_>>().join("|");
            command = command.arg(match option.values {
                Values::Words(words) if words.iter().all(|word| word.help.is_empty()) => {
                    arg.value_name(list(words)).value_parser(choice(words)).hide_possible_values(true)
                }
                Values::Words(words) => {
                    arg.value_name(flag.to_uppercase().replace('-', "_")).value_parser(choice(words))
                }
                Values::Switch(words) => {
                    let arg = arg.value_name(list(words)).value_parser(choice(words)).hide_possible_values(true);
                    arg.num_args(0..=1).require_equals(true).default_missing_value("on")
                }
                Values::Memory => arg.value_name("CAP").allow_hyphen_values(true),
                Values::Count => arg.value_name("N").allow_hyphen_values(true),
                Values::List => {
                    arg.value_name(if flag == "group" { "NAME" } else { "PATTERN" }).action(ArgAction::Append)
                }
                _ => arg.value_name("SIZE").allow_hyphen_values(true),
            });
        }
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for BucketOptionArgs {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let given = OPTIONS.iter().filter_map(|option| {
            let values = matches.get_many::<String>(flag(option)?)?;
            Some((option, values.cloned().collect()))
        });
        Ok(Self { given: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl BucketOptionArgs {
    /// The value of an option that has one.
    fn value(&self, name: &str) -> Option<&str> {
        let (_, values) = self.given.iter().find(|(option, _)| option.name == name)?;
        values.first().map(String::as_str)
    }

    /// The options of a pass of the kind.
    fn apply_to(&self, kind: BucketKind) -> Result<BucketOptions> {
        let given = self.given.iter().filter(|(option, _)| match option.values {
            // A name may hold what separates names in the text of a pipeline.
            Values::List => false,
            // Refused before, where no kind that is asked for may travel as bytes.
            _ => option.name != "mixed-dtype" || kind.mixes_dtypes(),
        });
        let pairs = given.filter_map(|(option, values)| Some((option.name, values.first()?.as_str())));
        let mut options = BucketOptions::parse(kind, pairs).map_err(|error| {
            let OptionError::Value { option, error } = error else { return anyhow!(error) };
            let value = self.value(option).unwrap_or_default();
            // A number or a switch is at fault by itself, a word may be so for the kind.
            let is_word = OPTIONS.iter().any(|row| row.name == option && matches!(row.values, Values::Words(_)));
            let asked = if is_word { format!(", and --{} is asked for", kind.word()) } else { String::new() };
            anyhow!("--{option} `{value}`: {error}{asked}")
        })?;
        for (option, values) in &self.given {
            match option.name {
                "groups" => options.groups.clone_from(values),
                "names" => options.names.clone_from(values),
                "except" => options.except.clone_from(values),
                _ => {}
            }
        }
        Ok(options)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum SwitchWord {
    On,
    Off,
}

/// The passes that the options ask for.
#[derive(Debug)]
pub struct Passes {
    /// The passes to run.
    pub pipeline: Pipeline,
    /// What to say before.
    pub notes: Vec<String>,
    /// Whether the options say how members are put together, and what is handed out.
    mode_is_given: bool,
    unpack_is_given: bool,
    /// Likewise whether gathers of different dtypes may travel together, and which kinds are merged.
    mixed_is_given: bool,
    kinds_are_given: bool,
}

/// Caps above this are taken, but are likely a slip of the unit.
const ABSURD_CAP: u64 = 1 << 40;

/// What a cap option says.
enum CapWord {
    Off,
    /// By bucket index; empty is no limit.
    Caps(Vec<u64>),
}
impl BucketArgs {
    /// Checks the options, all before any work.
    pub fn validate(&self) -> Result<Passes> {
        let mut notes = Vec::new();
        let pipeline = match &self.pipeline {
            Some(text) => text.parse().with_context(|| format!("--pipeline `{text}`"))?,
            None => self.passes(&mut notes)?,
        };
        for pass in &pipeline.passes {
            if let Pass::Bucket(options) = pass {
                notes.extend(absurd_caps(options));
            }
        }
        Ok(Passes {
            pipeline,
            notes,
            mode_is_given: self.rest.value("mode").is_some() || self.pipeline.is_some(),
            unpack_is_given: self.rest.value("unpack").is_some() || self.pipeline.is_some(),
            mixed_is_given: self.rest.value("mixed-dtype").is_some() || self.pipeline.is_some(),
            kinds_are_given: self.permute.is_some() || self.pipeline.is_some(),
        })
    }

    fn passes(&self, notes: &mut Vec<String>) -> Result<Pipeline> {
        let mut pipeline = Pipeline::rewrite(self.buckets(notes)?);
        if self.dedupe_collectives {
            let at = pipeline.passes.iter().take_while(|pass| !matches!(pass, Pass::Bucket(_))).count();
            pipeline.passes.insert(at, Pass::DedupeCollectives);
        }
        Ok(pipeline)
    }

    fn buckets(&self, notes: &mut Vec<String>) -> Result<Vec<BucketOptions>> {
        let typed = |kind| match kind {
            BucketKind::AllGather => ("--all-gather", &self.all_gather),
            BucketKind::ReduceScatter => ("--reduce-scatter", &self.reduce_scatter),
            BucketKind::AllReduce => ("--all-reduce", &self.all_reduce),
            BucketKind::Broadcast => ("--broadcast", &self.broadcast),
            BucketKind::AllToAll => ("--all-to-all", &self.all_to_all),
            BucketKind::Permute => ("--permute", &self.permute),
        };
        let xla = self.rest.value("policy") == Some("xla");
        let mut caps = Vec::new();
        for kind in BucketKind::ALL {
            let (option, text) = typed(kind);
            if let Some(text) = text {
                caps.push((kind, read_caps(option, text)?));
            }
        }
        // Only `off` is given: the other kinds are as if nothing was.
        let defaults = caps.iter().all(|(_, cap)| matches!(cap, CapWord::Off));
        let mut chosen = Vec::new();
        // XLA's combiners have an order of their own.
        let others = BucketKind::ALL.into_iter().filter(|kind| !xla || !BucketKind::XLA.contains(kind));
        let first_kinds: &[BucketKind] = if xla { &BucketKind::XLA } else { &[] };
        for kind in first_kinds.iter().copied().chain(others) {
            match caps.iter().find(|(given, _)| *given == kind) {
                Some((_, CapWord::Off)) => {}
                Some((_, CapWord::Caps(list))) => chosen.push((kind, list.clone())),
                None if defaults && xla && BucketKind::XLA.contains(&kind) => {
                    chosen.push((kind, BucketOptions::xla(kind).caps.cap_bytes));
                }
                None if defaults && !xla && kind.is_default() => {
                    chosen.push((kind, vec![kind.default_cap_bytes()]));
                }
                None => {}
            }
        }
        if defaults && !chosen.is_empty() {
            let text = |(kind, list): &(BucketKind, Vec<u64>)| format!("{} {}", kind.word(), format_bytes(list[0]));
            let list: Vec<String> = chosen.iter().map(text).collect();
            notes.push(format!("no cap given: {} (defaults)", list.join(", ")));
        }
        let first = match &self.first_bucket {
            Some(text) => Some(read_size("--first-bucket", text)?),
            None => None,
        };
        if self.rest.value("mixed-dtype") == Some("bytes") && !chosen.iter().any(|(kind, _)| kind.mixes_dtypes()) {
            bail!("--mixed-dtype `bytes`: only gathers and permutes may travel as bytes, and neither is asked for");
        }
        let pass = |(kind, mut cap_bytes): (BucketKind, Vec<u64>)| {
            if let Some(first) = first {
                if cap_bytes.is_empty() {
                    // The last of the list goes for all further buckets, so `none` needs a number.
                    cap_bytes.push(i64::MAX as u64);
                }
                cap_bytes.insert(0, first);
            }
            let mut options = self.rest.apply_to(kind)?;
            options.caps.cap_bytes = cap_bytes;
            Ok(options)
        };
        chosen.into_iter().map(pass).collect()
    }
}

fn read_caps(option: &str, text: &str) -> Result<CapWord> {
    match text.trim() {
        "off" => Ok(CapWord::Off),
        "none" | "unlimited" => Ok(CapWord::Caps(Vec::new())),
        _ => {
            let last = text.matches(',').count();
            let cap = |(index, part): (usize, &str)| match part.trim() {
                // The last of the list goes for all further buckets, so `none` needs a number.
                "none" | "unlimited" if index == last => Ok(i64::MAX as u64),
                "none" | "unlimited" => {
                    bail!("{option} `{text}`: `none` goes for all further buckets, so it comes last")
                }
                part => read_size(option, part),
            };
            text.split(',').enumerate().map(cap).collect::<Result<_>>().map(CapWord::Caps)
        }
    }
}

fn read_size(option: &str, text: &str) -> Result<u64> {
    match parse_bytes(text) {
        Ok(0) if option == "--first-bucket" => bail!("{option} `{text}`: a limit of zero holds nothing"),
        Ok(0) => {
            bail!("{option} `{text}`: a cap of zero holds nothing; `off` leaves the kind alone, `none` is no limit")
        }
        Ok(bytes) => Ok(bytes),
        Err(error) => bail!("{option} `{text}`: {}", error.expected),
    }
}
fn absurd_caps(options: &BucketOptions) -> Option<String> {
    let cap = options.caps.cap_bytes.iter().find(|&&cap| cap > ABSURD_CAP && cap < i64::MAX as u64)?;
    let kind = options.kind.word();
    Some(format!("warning: a cap of {} for {kind} is above 1 TiB; is the unit right?", format_bytes(*cap)))
}

/// Whether a graph gathers tensors of more than one dtype.
fn gathers_several_dtypes(graphs: &[Graph]) -> bool {
    graphs.iter().any(|graph| {
        let gathers = graph.order().iter().copied().filter(|&id| {
            graph.collective(id).is_some_and(|made| matches!(made.kind, CollectiveKind::AllGather { .. }))
        });
        let inputs = gathers.flat_map(|id| graph.collective_inputs(id));
        let mut dtypes = inputs.filter_map(|&input| graph.tensor(input)).map(|tensor| tensor.dtype);
        let first = dtypes.next();
        dtypes.any(|dtype| Some(dtype) != first)
    })
}

/// What passes are fitted to.
#[derive(Clone, Copy, Debug)]
pub struct Form<'a> {
    /// The form that the result has words of.
    pub format: Format,
    /// Whether the order of the nodes was chosen as a schedule.
    pub is_scheduled: bool,
    /// What the input suggests as cap, in bytes.
    pub suggested_cap_bytes: Option<u64>,
    /// The graphs.
    pub graphs: &'a [Graph],
}

impl<'a> Form<'a> {
    /// That of a document.
    pub fn of(document: &'a Document) -> Self {
        Self {
            format: document.format(),
            is_scheduled: document.is_scheduled(),
            suggested_cap_bytes: document.suggested_cap_bytes(),
            graphs: document.graphs(),
        }
    }

    /// That of FX text, of one graph that is not text.
    pub fn fx(graph: &'a Graph) -> Self {
        Self { format: Format::Fx, is_scheduled: false, suggested_cap_bytes: None, graphs: std::slice::from_ref(graph) }
    }
}

impl Passes {
    /// Fits the passes to the form of the file: in HLO text a merged collective takes its members as they are, and no
    /// value is a view of another. Refuses what the form has no words for.
    pub fn fit_to(&mut self, form: &Form<'_>) -> Result<()> {
        let is_pytorch = matches!(form.format, Format::Fx | Format::Export);
        let permutes = |pass: &Pass| matches!(pass, Pass::Bucket(options) if options.kind == BucketKind::Permute);
        if is_pytorch && !self.kinds_are_given && self.pipeline.passes.iter().any(permutes) {
            self.pipeline.passes.retain(|pass| !permutes(pass));
            self.notes.push("PyTorch has no word for several permutes in one; they are left alone".to_owned());
        }
        for pass in &mut self.pipeline.passes {
            let Pass::Bucket(options) = pass else { continue };
            let lists = options.mode == Mode::Coalesced && options.kind == BucketKind::AllGather;
            if is_pytorch && lists && options.mixed_dtype == MixedDtype::Bytes {
                options.mixed_dtype = MixedDtype::Split;
                if !gathers_several_dtypes(form.graphs) {
                    continue;
                }
                self.notes.push(
                    "note: gathers of several dtypes are not merged: PyTorch's gloo backend computes a coalesced gather \
                     of them wrongly; --mode concat sends them as bytes"
                        .to_owned(),
                );
            }
            match form.format {
                Format::Fx if options.kind == BucketKind::Permute => {
                    bail!("FX text has no word for several permutes in one; it cannot be rewritten with --permute");
                }
                Format::Export if options.kind == BucketKind::Permute => {
                    bail!(
                        "PyTorch has no operator for several permutes in one; a program cannot be rewritten with --permute"
                    );
                }
                Format::Hlo => {
                    // XLA's combiners take the suggestion of its annotator only where their caps are the default.
                    if options.policy == Policy::Xla && options.caps == BucketOptions::xla(options.kind).caps {
                        options.suggested_cap_bytes = options.suggested_cap_bytes.or(form.suggested_cap_bytes);
                    }
                    let has_form = !matches!(options.kind, BucketKind::Broadcast | BucketKind::AllToAll);
                    if has_form && !self.mode_is_given {
                        options.mode = Mode::Coalesced;
                    }
                    // A tuple holds members of any dtypes.
                    if options.mode == Mode::Coalesced && options.kind.mixes_dtypes() && !self.mixed_is_given {
                        options.mixed_dtype = MixedDtype::Bytes;
                    }
                    if !self.unpack_is_given {
                        options.unpack = Unpack::Views;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Warns of filters that name nothing in the graph.
    pub fn warn_of_strangers(&self, graph: &Graph) {
        let options = self.pipeline.passes.iter().find_map(|pass| match pass {
            Pass::Bucket(options) => Some(options),
            _ => None,
        });
        let Some(options) = options else { return };
        for name in &options.groups {
            if !graph.groups().iter().any(|group| &*group.name == name) {
                talk::warn(&format!("no collective of graph `{}` has the group `{name}`", graph.name));
            }
        }
        let collectives: Vec<&str> =
            graph.order().iter().filter(|&&id| graph.collective(id).is_some()).map(|&id| graph.name_of(id)).collect();
        for pattern in options.names.iter().chain(&options.except) {
            if !collectives.iter().any(|name| matches_pattern(pattern, name)) {
                talk::warn(&format!("no collective of graph `{}` matches `{pattern}`", graph.name));
            }
        }
    }
}
