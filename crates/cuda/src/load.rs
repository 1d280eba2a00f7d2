//! Finds and loads a library.
//!
//! Where it is looked for:
//!
//! 1. at the path that the caller gives, and nowhere else;
//! 2. else at the path in an environment variable, and nowhere else: who names a library wants that one;
//! 3. else under its names, newest version first, wherever the system's loader looks (`LD_LIBRARY_PATH` included);
//! 4. then in a few folders that the loader does not know: WSL's, the CUDA toolkit's;
//! 5. then in the folders of NVIDIA's Python packages (`site-packages/nvidia/*/lib`) under `VIRTUAL_ENV`,
//!    `CONDA_PREFIX`, the `python3` on `PATH`, `~/.local`, `/usr/local` and `/usr`.
//!
//! A path may be a file, or a folder that holds the library under one of its names. Loading runs a library's own
//! start-up code: who sets these variables is trusted, as with `LD_LIBRARY_PATH`.

#![expect(unsafe_code, reason = "a library's start-up code runs; says why it may")]

use libloading::Library;
use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// A library that is loaded at run time.
#[derive(Debug)]
pub struct Wanted {
    /// What it is, for messages.
    pub what: &'static str,
    /// The environment variable that holds its path.
    pub variable: &'static str,
    /// Its file names, best first.
    pub names: &'static [&'static str],
    /// Folders where the loader does not look.
    pub folders: &'static [&'static str],
    /// Whether NVIDIA's Python packages have it.
    pub in_wheels: bool,
    /// What to do when it is missing.
    pub advice: &'static str,
}

/// The CUDA driver's library. It comes with the driver; no package has it.
pub const CUDA: Wanted = Wanted {
    what: "the CUDA driver library",
    variable: "BUCKETEER_CUDA_LIB",
    names: &["libcuda.so.1", "libcuda.so"],
    folders: &["/usr/lib/wsl/lib"],
    in_wheels: false,
    advice: "install NVIDIA's driver, or name the library in BUCKETEER_CUDA_LIB",
};

/// NVIDIA's run-time compiler.
pub const NVRTC: Wanted = Wanted {
    what: "the CUDA run-time compiler (NVRTC)",
    variable: "BUCKETEER_NVRTC_LIB",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    folders: &["/usr/local/cuda/lib64", "/opt/cuda/lib64"],
    in_wheels: true,
    advice: "install the Python package nvidia-cuda-nvrtc or the CUDA toolkit, or name the library in \
             BUCKETEER_NVRTC_LIB",
};

/// NVIDIA's collectives.
pub const NCCL: Wanted = Wanted {
    what: "the collectives library (NCCL)",
    variable: "BUCKETEER_NCCL_LIB",
    names: &["libnccl.so.2", "libnccl.so"],
    folders: &["/usr/local/nccl/lib", "/opt/nccl/lib"],
    in_wheels: true,
    advice: "install the Python package nvidia-nccl-cu13 (or -cu12) or NVIDIA's libnccl2, or name the library in \
             BUCKETEER_NCCL_LIB",
};

/// Why a library cannot be used.
#[derive(Debug)]
pub enum LoadError {
    /// Not found, or not loaded.
    Library {
        /// What was looked for.
        what: &'static str,
        /// Every file and name tried, in order.
        tried: Vec<Attempt>,
        /// Folders, as patterns, that hold no file of these names.
        without: Vec<PathBuf>,
        /// What to do.
        advice: &'static str,
    },
    /// It was loaded, but lacks a function.
    Symbol {
        /// What was loaded.
        what: &'static str,
        /// From where.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
        /// The loader's reason.
        source: libloading::Error,
    },
}

/// One place where a library was looked for.
#[derive(Debug)]
pub struct Attempt {
    /// A path, or a name for the system's loader to find.
    pub path: PathBuf,
    /// Why it was not this.
    pub error: libloading::Error,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { what, tried, without, advice } => {
                write!(f, "{what} cannot be loaded; {advice}; tried")?;
                for Attempt { path, error } in tried {
                    write!(f, "\n  {}: {}", path.display(), chain(error))?;
                }
                without.iter().try_for_each(|folder| write!(f, "\n  {}: not there", folder.display()))
            }
            Self::Symbol { what, path, symbol, source } => write!(
                f,
                "{what} at {} has no function {symbol}: it is too old, or another library: {}",
                path.display(),
                chain(source)
            ),
        }
    }
}

impl Error for LoadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Library { tried, .. } => tried.first().map(|attempt| &attempt.error as _),
            Self::Symbol { source, .. } => Some(source),
        }
    }
}

/// The innermost reason, which is the one that says something: libloading's own text is "dlopen failed".
fn chain(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// Loads a library from the first place that has it. It stays loaded for good: its threads and handles outlive any
/// owner that we could give it.
pub fn load(wanted: &Wanted, path: Option<&Path>) -> Result<(&'static Library, PathBuf), LoadError> {
    let mut tried = Vec::new();
    let Places { files, without } = places(wanted, path, &|name| std::env::var_os(name));
    for path in files {
        // SAFETY: start-up code of a library runs. It is the one that the system, or whoever sets its variables, has
        // put there for this purpose; see the module's text.
        match unsafe { Library::new(&path) } {
            Ok(library) => return Ok((Box::leak(Box::new(library)), path)),
            Err(error) => tried.push(Attempt { path, error }),
        }
    }
    Err(LoadError::Library { what: wanted.what, tried, without, advice: wanted.advice })
}

/// A struct with a function pointer for each symbol of a library, and the means to take them out of it. Those under
/// `since` may be missing: each has the version of the library that brought it, before which it is not used.
macro_rules! library {
    (
        $(#[$meta:meta])* $Library:ident { $($symbol:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)* }
        $(since { $($version:literal $optional:ident($($oarg:ident: $oty:ty),* $(,)?) -> $oret:ty;)* })?
    ) => {
        $(#[$meta])*
        #[expect(non_snake_case, reason = "C's names")]
        pub struct $Library {
            $(pub $symbol: unsafe extern "C" fn($($arg: $ty),*) -> $ret,)*
            $($(pub $optional: Option<unsafe extern "C" fn($($oarg: $oty),*) -> $oret>,)*)?
        }

        impl $Library {
            /// Takes all functions out of a library; the name of the first that is missing, with the loader's reason.
            ///
            /// # Safety
            /// The library's functions of these names have these types, and it stays loaded for good.
            #[expect(non_snake_case, reason = "C's names")]
            pub unsafe fn bind(library: &libloading::Library) -> Result<Self, (&'static str, libloading::Error)> {
                $(
                    // SAFETY: the caller promises the type; the pointer is copied out, and the library stays.
                    let $symbol = *unsafe { library.get(concat!(stringify!($symbol), "\0")) }
                        .map_err(|error| (stringify!($symbol), error))?;
                )*
                $($(
                    // SAFETY: as above.
                    let $optional = unsafe { library.get(concat!(stringify!($optional), "\0")) }.ok().map(|found| *found);
                )*)?
                Ok(Self { $($symbol,)* $($($optional,)*)? })
            }

            $(
                /// Forgets the functions that are newer than the library says it is.
                pub fn forget_newer(&mut self, version: i32) {
                    $(if version < $version {
                        self.$optional = None;
                    })*
                }

                /// The functions that are not there and that a library of this version has.
                pub fn missing(&self, version: i32) -> Vec<&'static str> {
                    let mut missing = Vec::new();
                    $(if version >= $version && self.$optional.is_none() {
                        missing.push(stringify!($optional));
                    })*
                    missing
                }
            )?
        }
    };
}
pub(super) use library;

/// Where to look.
#[derive(Default)]
struct Places {
    /// Files, and names for the system's loader, in order.
    files: Vec<PathBuf>,
    /// Folders, as patterns, that hold nothing of these names.
    without: Vec<PathBuf>,
}

fn places(wanted: &Wanted, path: Option<&Path>, variable: &dyn Fn(&str) -> Option<OsString>) -> Places {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = path.map(Path::to_owned).or_else(|| set(wanted.variable)) {
        let files = match path.is_dir() {
            true => wanted.names.iter().map(|name| path.join(name)).collect(),
            false => vec![path],
        };
        return Places { files, without: Vec::new() };
    }
    let mut places = Places { files: wanted.names.iter().map(PathBuf::from).collect(), without: Vec::new() };
    for folder in wanted.folders {
        places.add(wanted, folder.into(), &[folder.into()]);
    }
    let prefixes = if wanted.in_wheels { prefixes(&set) } else { Vec::new() };
    for prefix in prefixes {
        let pattern = prefix.join("lib/python3*/{site,dist}-packages/nvidia/*/lib");
        places.add(wanted, pattern, &wheel_folders(&prefix));
    }
    places
}

impl Places {
    /// The files of the wanted names in an installation's folders, which together are called `pattern`.
    fn add(&mut self, wanted: &Wanted, pattern: PathBuf, folders: &[PathBuf]) {
        let files = wanted.names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let files: Vec<PathBuf> = files.filter(|path| path.exists()).collect();
        if files.is_empty() {
            self.without.push(pattern);
        }
        self.files.extend(files);
    }
}

/// Where Python installations may be.
fn prefixes(set: &dyn Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| set(name)).collect();
    let path = set("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|python| python.exists());
    if let Some(python) = python {
        // As named, which in a virtual environment is its own, and as linked, which is the installation behind it.
        let real = python.canonicalize().ok();
        for prefix in [Some(python), real].iter().flatten().filter_map(|python| python.parent()?.parent()) {
            prefixes.push(prefix.to_owned());
            // What is on the path may be pyenv's script, and the installations lie here.
            prefixes.extend(children(&prefix.join("versions")));
        }
    }
    prefixes.extend(set("HOME").map(|home| home.join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut seen = std::collections::HashSet::new();
    prefixes.retain(|prefix| seen.insert(prefix.clone()));
    prefixes
}

/// `lib/python3.*/{site,dist}-packages/nvidia/*/lib` below a prefix.
fn wheel_folders(prefix: &Path) -> Vec<PathBuf> {
    let pythons = children(&prefix.join("lib"))
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3")));
    let packages = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    packages.flat_map(|packages| children(&packages.join("nvidia"))).map(|package| package.join("lib")).collect()
}

/// What a folder holds, last name first, so that a newer version stands before an older; empty when it cannot be read.
fn children(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort_by(|a, b| b.cmp(a));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(wanted: &Wanted, path: Option<&str>, variables: &[(&str, &str)]) -> Places {
        places(wanted, path.map(Path::new), &|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn a_given_path_stands_before_the_variable_and_both_stand_alone() {
        let variables = [("BUCKETEER_CUDA_LIB", "/from/variable.so")];
        assert_eq!(look(&CUDA, Some("/given.so"), &variables).files, [Path::new("/given.so")]);
        assert_eq!(look(&CUDA, None, &variables).files, [Path::new("/from/variable.so")]);
        assert_eq!(look(&CUDA, None, &[("BUCKETEER_CUDA_LIB", "")]).files[0], Path::new("libcuda.so.1"));
    }

    #[test]
    fn wheels_are_found_under_each_prefix() {
        let root = std::env::temp_dir().join(format!("bucketeer-wheels-{}", std::process::id()));
        let lib = |package: &str| root.join("lib/python3.11/site-packages/nvidia").join(package).join("lib");
        for (package, name) in [("cu13", "libnvrtc.so.13"), ("cuda_nvrtc", "libnvrtc.so.12")] {
            std::fs::create_dir_all(lib(package)).unwrap();
            std::fs::write(lib(package).join(name), "").unwrap();
        }
        let prefix = root.to_str().unwrap();
        let expected = [lib("cu13").join("libnvrtc.so.13"), lib("cuda_nvrtc").join("libnvrtc.so.12")];
        for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            let Places { files: found, without } = look(&NVRTC, None, &[(variable, prefix), ("HOME", "/nobody")]);
            assert!(
                found.iter().zip(NVRTC.names).all(|(path, name)| path == Path::new(name)),
                "the system's come first"
            );
            let wheels: Vec<_> = found.iter().filter(|path| path.starts_with(&root)).collect();
            assert!(without.contains(&"/nobody/.local/lib/python3*/{site,dist}-packages/nvidia/*/lib".into()));
            assert!(!without.iter().any(|at| at.starts_with(&root)));
            assert_eq!(wheels, expected.iter().collect::<Vec<_>>());
        }
        assert_eq!(
            look(&NVRTC, Some(lib("cu13").to_str().unwrap()), &[]).files[0],
            expected[0],
            "a folder is looked into"
        );
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_missing_library_names_every_place_and_the_loaders_reason() {
        let folder = std::env::temp_dir();
        let error = load(&CUDA, Some(&folder.join("no-such.so"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("no-such.so: ") && text.contains("No such file"), "{text}");
        assert!(text.contains("BUCKETEER_CUDA_LIB"), "{text}");
        assert!(error.source().is_some());
    }
}
