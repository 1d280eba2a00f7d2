//! The assembler's report in NVRTC's log. For each kernel it has lines like these (13.5):
//!
//! ```text
//! ptxas info    : Compiling entry function 'pack' for 'sm_90'
//! ptxas info    : Function properties for pack
//! ptxas         .     256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//! ptxas info    : Used 19 registers, used 0 barriers, 256 bytes cumulative stack size
//! ptxas info    : Compile time = 13.278 ms
//! ```

/// What a kernel costs each thread, as the assembler reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelCost {
    /// The kernel.
    pub name: String,
    /// Registers.
    pub registers: u32,
    /// Bytes of local memory: arrays that are not in registers, and spills.
    pub stack_bytes: u32,
    /// Bytes that are stored to local memory for want of registers.
    pub spill_store_bytes: u32,
    /// Bytes that are loaded back.
    pub spill_load_bytes: u32,
}

impl KernelCost {
    /// Whether all is in registers.
    #[must_use]
    pub const fn is_all_in_registers(&self) -> bool {
        self.stack_bytes == 0 && self.spill_store_bytes == 0 && self.spill_load_bytes == 0
    }
}

/// Reads a log. A kernel without all of its lines is left out.
pub fn read(log: &str) -> Vec<KernelCost> {
    let mut kernels = Vec::new();
    let mut name = None;
    let mut frame = None;
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next();
            frame = None;
        } else if let Some(at) = line.find("bytes stack frame") {
            frame = Some((number_before(&line[..at]), number_before_text(line, " bytes spill stores"), line));
        } else if let Some(rest) = line.split(": Used ").nth(1)
            && let (Some(name), Some((Some(stack), Some(stores), line))) = (name.take(), frame.take())
            && let Some(registers) = rest.split(' ').next().and_then(|number| number.parse().ok())
            && let Some(loads) = number_before_text(line, " bytes spill loads")
        {
            kernels.push(KernelCost {
                name: name.to_owned(),
                registers,
                stack_bytes: stack,
                spill_store_bytes: stores,
                spill_load_bytes: loads,
            });
        }
    }
    kernels
}

fn number_before_text(line: &str, text: &str) -> Option<u32> {
    number_before(&line[..line.find(text)?])
}

/// The number that a text ends in.
fn number_before(text: &str) -> Option<u32> {
    text.trim_end().rsplit(' ').next()?.parse().ok()
}

/// A log without the assembler's times, which differ each time.
pub fn without_times(log: &str) -> String {
    let lines = log.trim_end().lines().filter(|line| !line.starts_with("ptxas info    : Compile time"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
a.cu(3): warning #177-D: variable \"x\" was declared but never referenced
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90'
ptxas info    : Function properties for spill
ptxas         .     256 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 19 registers, used 0 barriers, 256 bytes cumulative stack size
ptxas info    : Compile time = 13.278 ms
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
";

    #[test]
    fn a_report_becomes_numbers() {
        let kernels = read(LOG);
        let numbers: Vec<_> = kernels
            .iter()
            .map(|k| (&*k.name, k.registers, k.stack_bytes, k.spill_store_bytes, k.spill_load_bytes))
            .collect();
        assert_eq!(numbers, [("spill", 19, 256, 8, 12), ("k", 12, 0, 0, 0)]);
        assert!(!kernels[0].is_all_in_registers() && kernels[1].is_all_in_registers());
    }

    #[test]
    fn a_log_without_a_report_has_no_kernels() {
        assert!(read("").is_empty());
        assert!(read("ptxas info    : Used 12 registers, used 0 barriers\n").is_empty());
        assert!(!without_times(LOG).contains("13.278"));
    }
}
