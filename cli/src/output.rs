//! Writing results: to stdout, or to a file that is either replaced whole or left as it was.

use anyhow::{Context, Result};
use bucketeer_formats::Document;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes to stdout.
pub fn to_stdout(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).context("cannot write to stdout")
}

/// A value as JSON text.
pub fn json(value: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string_pretty(value).context("cannot write JSON")? + "\n")
}

/// Whether whoever read our output has gone, which is not a failure of ours.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(closed)
}

/// What a file is to hold.
pub trait Content {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()>;
}

impl Content for [u8] {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self)
    }
}

impl Content for Vec<u8> {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self)
    }
}

impl Content for Document {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write(out)
    }
}

/// Writes a result: to stdout for none or `-`, else to the file.
pub fn write<C: Content + ?Sized>(path: Option<&Path>, content: &C) -> Result<()> {
    let to_stdout = || {
        let mut stdout = io::stdout().lock();
        content.write_to(&mut stdout).and_then(|()| stdout.flush()).context("cannot write to stdout")
    };
    match path {
        None => to_stdout(),
        Some(path) if path.as_os_str() == "-" => to_stdout(),
        Some(path) => replace(path, content).with_context(|| format!("cannot write {}", path.display())),
    }
}

/// Does what [`write`] would, but leaves no trace: what can fail before a file is replaced fails here, too.
pub fn rehearse<C: Content + ?Sized>(path: Option<&Path>, content: &C) -> Result<()> {
    let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
        return content.write_to(&mut io::sink()).context("cannot write to stdout");
    };
    let could = destination(path).and_then(|Destination { target, old }| {
        if old.is_none() && !fs::metadata(folder_of(&target))?.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        content.write_to(&mut io::sink())
    });
    could.with_context(|| format!("cannot write {}", path.display()))
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What stands for a rank in the name of a file.
pub const RANK: &str = "{rank}";

/// The file of a rank.
pub fn of_rank(path: &Path, rank: u32) -> PathBuf {
    let name = path.to_string_lossy();
    if name.contains(RANK) { PathBuf::from(name.replace(RANK, &rank.to_string())) } else { path.to_owned() }
}

/// Writes several files, each when it is made. Until all are written beside their places, none is replaced.
pub fn write_all<C: Content>(files: impl IntoIterator<Item = Result<(PathBuf, C)>>) -> Result<()> {
    let mut staged = Vec::new();
    for file in files {
        let (path, content) = file?;
        let beside = stage(&path, &content).with_context(|| format!("cannot write {}", path.display()))?;
        staged.push((path, beside));
    }
    for (path, staged) in staged {
        staged.place().with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Writes beside the file, then takes its place. Whatever fails, the old file is whole.
fn replace<C: Content + ?Sized>(path: &Path, content: &C) -> io::Result<()> {
    stage(path, content)?.place()
}

/// A file that is written, but not yet in its place. It goes if it never gets there.
struct Staged {
    /// None for what was written where it is.
    beside: Option<PathBuf>,
    target: PathBuf,
}

impl Staged {
    fn place(mut self) -> io::Result<()> {
        if let Some(beside) = &self.beside {
            fs::rename(beside, &self.target)?;
            self.beside = None;
        }
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

/// Where a file goes, and what is there.
struct Destination {
    target: PathBuf,
    old: Option<fs::Metadata>,
}

/// Looks at where a file goes. What may not be written is refused.
fn destination(path: &Path) -> io::Result<Destination> {
    // Through links, so that a link stays one.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = fs::metadata(&target).ok();
    match &old {
        Some(old) if old.is_dir() => return Err(io::Error::from(io::ErrorKind::IsADirectory)),
        // A file that may not be written is not to be replaced either.
        Some(old) if old.is_file() => drop(OpenOptions::new().write(true).open(&target)?),
        _ => {}
    }
    Ok(Destination { target, old })
}

fn stage<C: Content + ?Sized>(path: &Path, content: &C) -> io::Result<Staged> {
    let Destination { target, old } = destination(path)?;
    // Devices and pipes are written to, not replaced.
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        content.write_to(&mut OpenOptions::new().write(true).open(&target)?)?;
        return Ok(Staged { beside: None, target });
    }
    let (mut file, beside) = create_beside(&target)?;
    let staged = Staged { beside: Some(beside), target };
    content.write_to(&mut file)?;
    if let Some(old) = &old {
        file.set_permissions(old.permissions())?;
    }
    file.sync_all()?;
    Ok(staged)
}

/// A new file in the same folder.
fn create_beside(target: &Path) -> io::Result<(File, PathBuf)> {
    let name = target.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    let mut attempt = 0;
    loop {
        let mut beside = std::ffi::OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}.{attempt}.tmp", std::process::id()));
        let beside = target.with_file_name(beside);
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            Ok(file) => return Ok((file, beside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}
