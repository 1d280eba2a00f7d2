//! What a merged instruction says of its members: metadata, frontend attributes, shardings.
//!
//! The rules are those of XLA's combiners (jaxlib 0.10.2): names of operations share the path that all have in common,
//! the rest stands in parentheses; of frontend attributes each key has the sorted set of its members' values.

use super::attributes::entries;
use std::collections::{BTreeMap, BTreeSet};

/// The members' `metadata`: that of the first that has any, with the names of all.
pub(super) fn metadata(members: &[&str]) -> Option<String> {
    let first = members.iter().find(|value| !value.is_empty())?;
    let names: Vec<&str> = members.iter().filter_map(|value| super::attributes::entry(value, "op_name")).collect();
    let Some(merged) = op_name(&names) else { return Some((*first).to_owned()) };
    match super::attributes::entry(first, "op_name") {
        Some(old) => {
            let at = old.as_ptr() as usize - first.as_ptr() as usize;
            Some(format!("{}{merged}{}", &first[..at], &first[at + old.len()..]))
        }
        None => Some((*first).to_owned()),
    }
}

/// `model/layer/ag_0` and `model/layer/ag_1` are `model/layer/(ag_0:ag_1)`.
fn op_name(names: &[&str]) -> Option<String> {
    let first = *names.first()?;
    if names.iter().all(|name| *name == first) {
        return Some(first.to_owned());
    }
    let parts: Vec<Vec<&str>> = names.iter().map(|name| name.split('/').collect()).collect();
    let same = |nth: usize| parts.iter().all(|path| path.len() > nth + 1 && path[nth] == parts[0][nth]);
    let common = (0..parts[0].len()).take_while(|&nth| same(nth)).count();
    let prefix: String = parts[0][..common].iter().map(|part| format!("{part}/")).collect();
    let ends: Vec<String> = parts.iter().map(|path| path[common..].join("/")).collect();
    Some(format!("{prefix}({})", ends.join(":")))
}

/// The members' `frontend_attributes`.
pub(super) fn frontend_attributes(members: &[&str]) -> Option<String> {
    let first = members.iter().find(|value| !value.is_empty())?;
    if members.iter().all(|value| value == first) {
        return Some((*first).to_owned());
    }
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in members.iter().flat_map(|value| entries(value)) {
        values.entry(key).or_default().insert(value);
    }
    let joined = |(key, set): (&&str, &BTreeSet<&str>)| {
        let list: Vec<&str> = set.iter().copied().collect();
        format!("{key}=\"{}\"", list.join(","))
    };
    Some(format!("{{{}}}", values.iter().map(joined).collect::<Vec<_>>().join(",")))
}

/// The members' `sharding`s, as that of a tuple; none unless all have one.
pub(super) fn sharding(members: &[&str]) -> Option<String> {
    let all = members.iter().all(|value| !value.is_empty());
    all.then(|| format!("{{{}}}", members.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_share_their_common_path() {
        for (names, expected) in [
            (&["model/layer/ag_0", "model/layer/ag_1"][..], "model/layer/(ag_0:ag_1)"),
            (&["g0", "g1", "g2"], "(g0:g1:g2)"),
            (&["a/b", "a/b"], "a/b"),
            (&["a/x/c", "a/y/c", "a/x/c"], "a/(x/c:y/c:x/c)"),
            (&["a/b", "a/b/c"], "a/(b:b/c)"),
        ] {
            assert_eq!(op_name(names).as_deref(), Some(expected));
        }
        let merged = metadata(&["", r#"{op_type="p" op_name="a/b" stack_frame_id=4}"#, r#"{op_name="a/c"}"#]);
        assert_eq!(merged.as_deref(), Some(r#"{op_type="p" op_name="a/(b:c)" stack_frame_id=4}"#));
        assert_eq!(metadata(&["", ""]), None);
    }

    #[test]
    fn frontend_attributes_have_the_sorted_set_of_values() {
        let merged = frontend_attributes(&[r#"{color="red",keep="1"}"#, r#"{color="blue",keep="1"}"#, ""]);
        assert_eq!(merged.as_deref(), Some(r#"{color="blue,red",keep="1"}"#));
        assert_eq!(frontend_attributes(&["", ""]), None);
    }
}
