//! Groups as lists of devices, whatever they were spelled by.
//!
//! XLA prints groups of several spellings and reads all of them, but not every way back into XLA does: through StableHLO,
//! groups that a mesh's axes spell do not reliably come out as the groups they were. Lists do.

use super::error::Fault;
use super::groups;
use super::module::Module;

/// Most device numbers that are written for a module.
const MAX_WRITTEN: usize = 1 << 24;

/// The text of a module with `replica_groups={{0,1},{2,3}}` in the place of other spellings.
pub(super) fn listed(text: &str, module: &Module) -> Result<String, Fault> {
    let mut out = String::with_capacity(text.len());
    let (mut at, mut written) = (0, 0);
    let mut spans: Vec<_> = module
        .instructions
        .iter()
        .filter_map(|instruction| module.attribute(text, instruction, "replica_groups"))
        .filter(|value| !value.of(text).starts_with('{'))
        .collect();
    spans.sort_by_key(|value| value.at());
    for value in spans {
        let lists = groups::replica_groups(value.of(text)).map_err(|fault| fault.shifted(value.at()))?;
        written += lists.iter().map(Vec::len).sum::<usize>();
        if written > MAX_WRITTEN {
            let problem = format!("the module's groups would be written as more than {MAX_WRITTEN} devices in all");
            return Err(Fault::new(value.at(), problem, "fewer groups"));
        }
        let list = |ids: &Vec<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let lists: Vec<String> = lists.iter().map(|ids| format!("{{{}}}", list(ids))).collect();
        out.push_str(&text[at..value.at()]);
        out.push_str(&format!("{{{}}}", lists.join(",")));
        at = value.at() + value.of(text).len();
    }
    out.push_str(&text[at..]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::HloText;

    const SPELLINGS: &[&str] = &[
        "{}",
        "{{0,1},{2,3}}",
        "[2,2]<=[4]",
        "[2,2]<=[2,2]T(1,0)",
        "mesh['x'=2,'y'=2] {'x'}",
        "mesh['x'=2,'y'=2], device_ids=(3,2,1,0) {'y'}",
        "mesh['x'=4] {'x':(1)2}",
    ];

    fn module(spelling: &str) -> String {
        format!(
            "HloModule m, num_partitions=4\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
             ROOT c = f32[] add(a, b)\n}}\n\nENTRY main {{\n  x = f32[8] parameter(0)\n  \
             ROOT r = f32[8] all-reduce(x), channel_id=1, replica_groups={spelling}, use_global_device_ids=true, \
             to_apply=add, metadata={{op_name=\"replica_groups=[1,1]<=[1]\"}}\n}}\n"
        )
    }

    #[test]
    fn every_spelling_lists_the_devices_that_it_means_and_nothing_else_changes() {
        for spelling in SPELLINGS {
            let read = HloText::parse(module(spelling)).unwrap();
            let listed = read.with_listed_groups().unwrap();
            let members = |text: &HloText| text.graphs()[0].groups()[0].members.clone();
            assert_eq!(members(&read), members(&listed), "{spelling}");
            let value = listed.source().split("replica_groups=").nth(1).and_then(|rest| rest.split(", use").next());
            assert!(value.is_some_and(|value| value.starts_with('{')), "{spelling}: {value:?}");
            assert_eq!(listed.source().replacen(value.unwrap(), spelling, 1), read.source(), "{spelling}");
        }
    }

    #[test]
    fn lists_that_would_be_too_long_are_refused() {
        let line = |at: usize| {
            format!("  r{at} = f32[8] all-gather(x), replica_groups=[1,1048576]<=[1048576], dimensions={{0}}\n")
        };
        let lines: String = (0..17).map(line).collect();
        let text = format!(
            "HloModule m, replica_count=1048576\n\nENTRY main {{\n  x = f32[8] parameter(0)\n{lines}  ROOT t = () tuple()\n}}\n"
        );
        let module = Module::read(&text).unwrap();
        let fault = listed(&text, &module).unwrap_err();
        assert!(fault.problem.contains("more than 16777216 devices"), "{}", fault.problem);
    }
}
