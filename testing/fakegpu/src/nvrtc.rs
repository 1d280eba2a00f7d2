//! The functions of libnvrtc, over the C compiler.

use crate::kernel;
use crate::module::SOURCE_MARK;
use crate::state::call;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

type Code = c_int;

const INVALID_INPUT: Code = 3;
const INVALID_PROGRAM: Code = 4;
const INVALID_OPTION: Code = 5;
const COMPILATION: Code = 6;
const ARCHS: [c_int; 6] = [75, 80, 86, 89, 90, 100];

/// Options that are taken and mean nothing here.
const IGNORED: &[&str] =
    &["--ptxas-options", "--std", "--use_fast_math", "--fmad", "--generate-line-info", "-lineinfo"];

#[derive(Default)]
struct Program {
    name: String,
    source: String,
    log: String,
    ptx: Vec<u8>,
    cubin: Vec<u8>,
}

struct Programs {
    made: usize,
    all: BTreeMap<usize, Program>,
}

static PROGRAMS: Mutex<Programs> = Mutex::new(Programs { made: 0, all: BTreeMap::new() });

fn programs() -> MutexGuard<'static, Programs> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetErrorString(code: Code) -> *const c_char {
    let text = match code {
        0 => c"NVRTC_SUCCESS",
        1 => c"NVRTC_ERROR_OUT_OF_MEMORY",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        11 => c"NVRTC_ERROR_INTERNAL_ERROR",
        _ => c"NVRTC_ERROR unknown",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> Code {
    call("nvrtcVersion", json!({}), || {
        major.write(12);
        minor.write(1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> Code {
    call("nvrtcGetNumSupportedArchs", json!({}), || {
        count.write(ARCHS.len() as c_int);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcGetSupportedArchs(archs: *mut c_int) -> Code {
    call("nvrtcGetSupportedArchs", json!({}), || {
        archs.copy_from_nonoverlapping(ARCHS.as_ptr(), ARCHS.len());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCreateProgram(
    program: *mut *mut c_void,
    source: *const c_char,
    name: *const c_char,
    headers: c_int,
    _header_texts: *const *const c_char,
    _header_names: *const *const c_char,
) -> Code {
    call("nvrtcCreateProgram", json!({}), || {
        if program.is_null() || source.is_null() || headers != 0 {
            return Err(INVALID_INPUT);
        }
        let text = |text: *const c_char| CStr::from_ptr(text).to_string_lossy().into_owned();
        let name = if name.is_null() { "default_program".to_owned() } else { text(name) };
        let mut programs = programs();
        programs.made += 1;
        let handle = programs.made;
        programs.all.insert(handle, Program { name, source: text(source), ..Program::default() });
        program.write(handle as *mut c_void);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcDestroyProgram(program: *mut *mut c_void) -> Code {
    call("nvrtcDestroyProgram", json!({}), || {
        let gone = programs().all.remove(&(*program as usize));
        program.write(std::ptr::null_mut());
        gone.map(drop).ok_or(INVALID_PROGRAM)
    })
}

/// What options ask for.
struct Target {
    arch: c_int,
    /// A CUBIN, not only PTX.
    real: bool,
    defines: Vec<String>,
}

fn target(options: &[String]) -> Result<Target, String> {
    let mut target = Target { arch: 75, real: false, defines: Vec::new() };
    for option in options {
        if let Some(arch) = option.strip_prefix("--gpu-architecture=") {
            let (real, number) = match (arch.strip_prefix("sm_"), arch.strip_prefix("compute_")) {
                (Some(number), _) => (true, number),
                (None, Some(number)) => (false, number),
                (None, None) => (false, ""),
            };
            let known = number.parse().ok().filter(|number| ARCHS.contains(number));
            target.arch = known.ok_or("nvrtc: error: invalid value for --gpu-architecture (-arch)\n")?;
            target.real = real;
        } else if option.starts_with("-D") {
            target.defines.push(option.clone());
        } else if !IGNORED.iter().any(|known| option == known || option.starts_with(&format!("{known}="))) {
            return Err(format!("nvrtc: error: unrecognized option {option} found\n"));
        }
    }
    Ok(target)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcCompileProgram(handle: *mut c_void, count: c_int, options: *const *const c_char) -> Code {
    let option = |at: usize| CStr::from_ptr(*options.add(at)).to_string_lossy().into_owned();
    let options: Vec<String> = (0..count as usize).map(option).collect();
    call("nvrtcCompileProgram", json!({ "options": options.clone() }), || {
        let (name, source) = match programs().all.get(&(handle as usize)) {
            Some(program) => (program.name.clone(), program.source.clone()),
            None => return Err(INVALID_PROGRAM),
        };
        let mut compiled = Program::default();
        let code = match target(&options) {
            Err(log) => {
                compiled.log = log;
                Err(INVALID_OPTION)
            }
            Ok(target) => match kernel::compile(&name, &source, target.arch, &target.defines) {
                Err(log) => {
                    compiled.log = log;
                    Err(COMPILATION)
                }
                Ok((object, log)) => {
                    compiled.log = log;
                    compiled.ptx = ptx(&source, target.arch);
                    if target.real {
                        compiled.cubin = object;
                    }
                    Ok(())
                }
            },
        };
        programs().all.insert(handle as usize, Program { name, source, ..compiled });
        code
    })
}

/// PTX of no instructions, which carries its source for [`crate::module`].
fn ptx(source: &str, arch: c_int) -> Vec<u8> {
    let mut text = format!("// by fakegpu\n.version 8.1\n.target sm_{arch}\n.address_size 64\n{SOURCE_MARK}");
    source.bytes().for_each(|byte| write!(text, "{byte:02x}").expect("a string takes all"));
    text.push('\n');
    text.into_bytes()
}

unsafe fn answer<T>(handle: *mut c_void, to: *mut T, read: impl FnOnce(&Program, *mut T)) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_INPUT);
    }
    programs().all.get(&(handle as usize)).map(|program| read(program, to)).ok_or(INVALID_PROGRAM)
}

macro_rules! getters {
    ($($size:ident, $get:ident, $part:ident, $zero:literal;)*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $size(program: *mut c_void, bytes: *mut usize) -> Code {
            call(stringify!($size), json!({}), || {
                answer(program, bytes, |program, bytes| bytes.write(program.$part.len() + $zero))
            })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(program: *mut c_void, to: *mut c_char) -> Code {
            call(stringify!($get), json!({}), || {
                answer(program, to.cast::<u8>(), |program, to| {
                    to.copy_from_nonoverlapping(program.$part.as_ptr(), program.$part.len());
                    if $zero == 1 {
                        to.add(program.$part.len()).write(0);
                    }
                })
            })
        }
    )* };
}

getters! {
    nvrtcGetProgramLogSize, nvrtcGetProgramLog, log, 1;
    nvrtcGetPTXSize, nvrtcGetPTX, ptx, 1;
    nvrtcGetCUBINSize, nvrtcGetCUBIN, cubin, 0;
}
