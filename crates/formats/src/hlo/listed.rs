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
