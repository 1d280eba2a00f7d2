//! What is given: graphs, and flags with the content of files that they name.

use super::Fault;
use crate::Arguments;
use crate::input::Files;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, ColorChoice, CommandFactory, FromArgMatches};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A file of graphs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// One on disk.
    Path(PathBuf),
    /// What would be in it.
    Content(Vec<u8>),
}

impl From<Vec<u8>> for Source {
    fn from(content: Vec<u8>) -> Self {
        Self::Content(content)
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

/// The options of a command, as on the command line.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Flags {
    words: Vec<String>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Flags {
    /// Gives the content of a file that an option names, in place of one on disk.
    #[must_use]
    pub fn with_file(mut self, name: &str, content: Vec<u8>) -> Self {
        self.files.insert(PathBuf::from(name), content);
        self
    }
}

impl From<Vec<String>> for Flags {
    fn from(words: Vec<String>) -> Self {
        Self { words, files: BTreeMap::new() }
    }
}

impl From<&[String]> for Flags {
    fn from(words: &[String]) -> Self {
        words.to_vec().into()
    }
}

impl From<&Vec<String>> for Flags {
    fn from(words: &Vec<String>) -> Self {
        words.clone().into()
    }
}

impl<const N: usize> From<[&str; N]> for Flags {
    fn from(words: [&str; N]) -> Self {
        words.map(str::to_owned).to_vec().into()
    }
}

/// Options that say where results go, or in which form; here they are values.
const OF_FILES: [&str; 5] = ["out", "json", "dry_run", "timeline", "trace"];

/// A command's options as read, and the files that go with them.
pub(super) struct Given<A> {
    pub(super) arguments: A,
    pub(super) files: Files,
    pub(super) is_quiet: bool,
}

/// Reads the flags of a command that gets these files of graphs, each with the name that content has in messages.
pub(super) fn read<A: FromArgMatches>(
    command: &str,
    sources: Vec<(String, Source)>,
    flags: Flags,
) -> Result<Given<A>, Fault> {
    let Flags { words, mut files } = flags;
    let mut line: Vec<OsString> = vec!["bucketeer".into(), command.into()];
    for (name, source) in sources {
        match source {
            Source::Path(path) => line.push(as_no_option(&path)),
            Source::Content(content) => {
                line.push(name.clone().into());
                files.insert(name.into(), content);
            }
        }
    }
    line.extend(words.into_iter().map(OsString::from));
    let tool = Arguments::command().color(ColorChoice::Never);
    let fault = |error: clap::Error| Fault::of_flags(&error);
    let mut matches = tool.try_get_matches_from(line).map_err(fault)?;
    let talk = crate::talk::TalkArgs::from_arg_matches(&matches).map_err(fault)?;
    let (_, mut matches) = matches.remove_subcommand().unwrap_or_default();
    if let Some(option) = OF_FILES.into_iter().find(|option| is_given(&matches, option)) {
        let option = option.replace('_', "-");
        let message = format!("--{option} says where results go, or in which form; here they are values");
        return Err(Fault::of_error(&crate::fault::OptionFault::of(anyhow::anyhow!(message)).into()));
    }
    let arguments = A::from_arg_matches_mut(&mut matches).map_err(fault)?;
    Ok(Given { arguments, files: Files::with(files), is_quiet: talk.is_quiet() })
}

fn is_given(matches: &ArgMatches, option: &str) -> bool {
    matches.try_contains_id(option).unwrap_or(false) && matches.value_source(option) == Some(ValueSource::CommandLine)
}

/// A path that is not taken for an option, nor for standard input.
fn as_no_option(path: &Path) -> OsString {
    let is_plain = !path.as_os_str().as_encoded_bytes().starts_with(b"-");
    if is_plain { path.into() } else { Path::new(".").join(path).into() }
}

/// What follows an option.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Takes {
    /// Nothing: it is given or not.
    Nothing,
    /// A value.
    Value,
    /// A value behind `=`, which may be left out.
    Switch,
    /// A value, each time that it is given.
    List,
}

/// An option of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its name, without dashes before it.
    pub name: String,
    /// What follows it.
    pub takes: Takes,
}

/// The options of a command that go with values in memory; none if there is no such command.
#[must_use]
pub fn options(command: &str) -> Vec<Known> {
    let mut tool = Arguments::command();
    // Gives commands the options that all have.
    tool.build();
    let Some(command) = tool.find_subcommand(command) else { return Vec::new() };
    let known = |option: &clap::Arg| {
        let name = option.get_long()?;
        let takes = match option.get_action() {
            ArgAction::SetTrue => Takes::Nothing,
            ArgAction::Append => Takes::List,
            ArgAction::Set if option.is_require_equals_set() => Takes::Switch,
            ArgAction::Set => Takes::Value,
            _ => return None,
        };
        let is_of_files = OF_FILES.contains(&option.get_id().as_str()) || option.get_id() == "color";
        (!is_of_files).then(|| Known { name: name.to_owned(), takes })
    };
    command.get_arguments().filter_map(known).collect()
}
