//! Loaded kernels, and launches of them.

use crate::codes::{INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION};
use crate::memory::AddressSpace;
use crate::state::state;
use crate::{kernel, log};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A shared object with kernels.
pub struct Module {
    library: Library,
    pub device: i32,
    pub unloaded: AtomicBool,
}

/// The function that runs a kernel over a grid.
type Run = unsafe extern "C" fn(*const u64, *const u32, *const u32);

pub struct Kernel {
    pub name: String,
    run: Run,
    /// Which parameters are pointers.
    pub is_pointer: Vec<bool>,
}

/// Why an image is not loaded: a code and the assembler's words.
pub type Refusal = (i32, String);

/// Starts the line of a PTX text that holds its source.
pub const SOURCE_MARK: &str = "// fakegpu source ";

impl Module {
    /// Loads an image.
    ///
    /// # Safety
    /// `image` is an ELF file, or text that ends in a zero byte.
    pub unsafe fn load(image: *const c_void, device: i32) -> Result<Self, Refusal> {
        if image.is_null() {
            return Err((INVALID_VALUE, String::new()));
        }
        let arch = state().settings.arch;
        let start = std::slice::from_raw_parts(image.cast::<u8>(), 4);
        let object = if start == b"\x7fELF" {
            std::slice::from_raw_parts(image.cast::<u8>(), elf_len(image.cast())).to_vec()
        } else {
            assemble(&CStr::from_ptr(image.cast::<c_char>()).to_string_lossy(), arch)?
        };
        let unusable = |why: String| (NO_BINARY_FOR_GPU, why);
        let path = kernel::scratch("module");
        std::fs::write(&path, object).map_err(|error| unusable(error.to_string()))?;
        let library = Library::new(&path).map_err(|error| unusable(format!("no object of this machine: {error:?}")));
        let _ = std::fs::remove_file(&path);
        let module = Self { library: library?, device, unloaded: AtomicBool::new(false) };
        match module.library.get::<*const i32>("fakegpu_arch\0") {
            // As on a GPU: of the same generation, and no newer.
            Ok(found) if **found / 10 == arch / 10 && **found <= arch => Ok(module),
            Ok(found) => Err(unusable(format!("made for sm_{}, the device is sm_{arch}", **found))),
            Err(_) => Err(unusable("not made by this library".to_owned())),
        }
    }

    pub fn kernel(&self, name: &str) -> Option<Kernel> {
        let symbol = |what: &str| format!("fakegpu_{what}_{name}\0");
        // SAFETY: the object was made by `kernel::compile`, where both symbols have these types; the table's first byte
        // says how many follow.
        unsafe {
            let run = *self.library.get::<Run>(symbol("run")).ok()?;
            let params = *self.library.get::<*const u8>(symbol("params")).ok()?;
            let is_pointer = (1..=usize::from(*params)).map(|at| *params.add(at) != 0).collect();
            Some(Kernel { name: name.to_owned(), run, is_pointer })
        }
    }
}

/// The end of an ELF file, whose table of sections stands last.
unsafe fn elf_len(image: *const u8) -> usize {
    let half = |at| usize::from(image.add(at).cast::<u16>().read_unaligned());
    image.add(0x28).cast::<u64>().read_unaligned() as usize + half(0x3a) * half(0x3c)
}

/// PTX to an object: by the source that is in it, or that is registered for one of its kernels, or in the environment.
fn assemble(ptx: &str, arch: i32) -> Result<Vec<u8>, Refusal> {
    let version = ptx.lines().find_map(|line| line.trim().strip_prefix(".version")).map(str::trim);
    let version = version.and_then(|version| version.split_once('.'));
    let version = version.and_then(|(major, minor)| Some((major.parse::<i32>().ok()?, minor.parse::<i32>().ok()?)));
    let Some(version) = version else { return Err((INVALID_PTX, "no .version".to_owned())) };
    if version > newest_ptx(state().settings.driver_version) {
        return Err((UNSUPPORTED_PTX_VERSION, format!("Unsupported .version {}.{}", version.0, version.1)));
    }
    let Some(source) = source_of(ptx) else {
        return Err((UNSUPPORTED_PTX_VERSION, "no C source is registered in place of this PTX".to_owned()));
    };
    kernel::compile("ptx", &source, arch, &[]).map(|(object, _)| object).map_err(|log| (INVALID_PTX, log))
}

/// The newest PTX that a driver knows, by the manual's table of releases.
const fn newest_ptx(driver: i32) -> (i32, i32) {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    match (major, minor) {
        (12, 0..=5) => (8, minor),
        (12, 6) => (8, 5),
        (12, _) => (8, minor - 1),
        _ => (major - 4, minor),
    }
}

fn source_of(ptx: &str) -> Option<String> {
    if let Some(hex) = ptx.lines().find_map(|line| line.strip_prefix(SOURCE_MARK)) {
        let digits = |at| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(digits).collect();
        return String::from_utf8(bytes?).ok();
    }
    let entries = ptx.split(".entry").skip(1);
    let mut names = entries.filter_map(|rest| rest.split('(').next()).map(str::trim);
    let registered = names.find_map(|name| state().ptx_sources.get(name).cloned());
    registered.or_else(|| std::fs::read_to_string(std::env::var_os("FAKEGPU_PTX_SOURCE")?).ok())
}

/// A kernel with its arguments, as they were when it was launched.
pub struct Launch {
    pub module: Arc<Module>,
    pub kernel: Arc<Kernel>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub args: Vec<u64>,
}

impl Launch {
    /// Runs it, and looks for damage.
    pub fn run(self, device: i32) -> Result<(), String> {
        let name = &self.kernel.name;
        if self.module.unloaded.load(Ordering::Acquire) {
            return Err(format!("kernel {name} runs after its module was unloaded"));
        }
        let held = self.hold(device).map_err(|text| format!("kernel {name}: {text}"))?;
        // SAFETY: the kernel has as many parameters as there are arguments; what its pointers are of is allocated and
        // held. What it does beyond is looked for below.
        unsafe { (self.kernel.run)(self.args.as_ptr(), self.grid.as_ptr(), self.block.as_ptr()) };
        drop(held);
        let mut damage = state().memory.damage();
        let last = damage.pop();
        damage.iter().for_each(|text| log::violation(&format!("kernel {name}: {text}")));
        last.map_or(Ok(()), |text| Err(format!("kernel {name}: {text}")))
    }

    /// Looks at each argument: pointers must be of live memory of the device, and no number may be of freed memory.
    fn hold(&self, device: i32) -> Result<Vec<crate::memory::Allocation>, String> {
        let state = state();
        let mut held = Vec::new();
        for (at, (arg, is_pointer)) in self.args.iter().zip(&self.kernel.is_pointer).enumerate() {
            let address = usize::try_from(*arg).unwrap_or(usize::MAX);
            if !is_pointer {
                if let Some(freed) = state.memory.freed_at(address).filter(|_| state.memory.find(address, 0).is_err()) {
                    return Err(format!("argument {at} is in {freed}, which is freed"));
                }
                continue;
            }
            if address == 0 {
                continue; // for no bytes
            }
            let found = state.memory.find(address, 0).map_err(|text| format!("argument {at} is {text}"))?;
            if found.place != AddressSpace::Device(device) {
                return Err(format!("argument {at} is of {found}, the kernel runs on GPU {device}"));
            }
            held.push(found.clone());
        }
        Ok(held)
    }
}
