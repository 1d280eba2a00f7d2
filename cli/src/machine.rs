//! Profiles of machines, by name or from files.

use crate::fault::{InputFault, OptionFault};
use crate::input::{Files, label};
use anyhow::{Result, anyhow, bail};
use bucketeer::passes::schedule::Profile;
use std::path::Path;

/// The profile that an option names: a machine that is built in, or a file.
pub fn profile(option: &str, word: &str, files: &Files) -> Result<Profile> {
    if let Some(profile) = Profile::named(word) {
        return Ok(profile);
    }
    if !files.has(Path::new(word)) {
        let known: Vec<&str> = Profile::names().collect();
        bail!(OptionFault::of(anyhow!(
            "{option} {word}: found neither a file nor a machine of that name; expected a file, or one of {}",
            known.join(", ")
        )));
    }
    let (file, text) = read_text(Path::new(word), files)?;
    Profile::from_json(&text).map_err(|error| InputFault::of_file(&file, error.to_string()).into())
}

/// A file's label and text.
pub fn read_text(path: &Path, files: &Files) -> Result<(String, String)> {
    let label = label(path);
    let text = String::from_utf8(files.read_file(path)?)
        .map_err(|_| InputFault::of_file(&label, "the file is not UTF-8 text".to_owned()))?;
    Ok((label, text))
}
