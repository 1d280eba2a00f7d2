//! Lists of devices: the five spellings of `replica_groups`, and `source_target_pairs`.
//!
//! | text | meaning |
//! | --- | --- |
//! | `{}` | all in one group |
//! | `{{0,1},{2,3}}` | as listed |
//! | `[2,4]<=[8]` | 0 to 7 in two rows of four |
//! | `[4,2]<=[2,4]T(1,0)` | 0 to 7 as 2 by 4, transposed, then in four rows of two |
//! | `mesh['x'=2,'y'=4] {'y'}` | a group runs over the named axes, the last of them fastest |
//!
//! An axis in braces may be a part of one: `'y':(2)4` is the part of size 4 behind a part of size 2. A mesh may say which
//! device stands where: `mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}`.
//!
//! Every number is checked before lists are made, and no list is longer than [`MAX_DEVICES`].

use super::error::Fault;
use super::lex::Cursor;
use smallvec::SmallVec;

/// Most devices of a module.
pub(super) const MAX_DEVICES: u64 = 1 << 20;

type Sizes = SmallVec<[u64; 4]>;
type Result<T, E = Fault> = std::result::Result<T, E>;

/// Groups of devices, in the order of the text. Empty is all devices in one group.
pub(super) type Lists = Vec<Vec<u32>>;

/// Reads `replica_groups`. Faults count from the first byte of the text.
pub(super) fn replica_groups(text: &str) -> Result<Lists> {
    let mut cursor = Cursor::new(text);
    let lists = match cursor.peek() {
        Some(b'{') => listed(&mut cursor)?,
        Some(b'[') => iota(&mut cursor)?,
        _ if cursor.take_word("mesh") => mesh(&mut cursor)?,
        _ => return Err(cursor.expected("groups: `{{0,1},{2,3}}`, `[2,2]<=[4]` or `mesh['x'=2,'y'=2] {'y'}`")),
    };
    cursor.skip_blank()?;
    if cursor.peek().is_some() {
        return Err(cursor.expected("nothing behind the groups"));
    }
    let mut ids: Vec<u32> = lists.iter().flatten().copied().collect();
    ids.sort_unstable();
    if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Fault::new(
            0,
            format!("device {} is in these groups twice", twice[0]),
            "groups that do not overlap",
        ));
    }
    Ok(lists)
}

/// Reads `source_target_pairs`. Faults count from the first byte of the text.
pub(super) fn pairs(text: &str) -> Result<Vec<(u32, u32)>> {
    let mut cursor = Cursor::new(text);
    let lists = listed(&mut cursor)?;
    let pairs: Vec<(u32, u32)> =
        lists.iter().filter_map(|list| <[u32; 2]>::try_from(&list[..]).ok()).map(Into::into).collect();
    if pairs.len() != lists.len() {
        return Err(Fault::new(0, "an entry does not have two devices", "pairs such as `{{0,1},{1,0}}`"));
    }
    for side in [0, 1] {
        let mut ids: Vec<u32> = lists.iter().map(|list| list[side]).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            let does = if side == 0 { "sends" } else { "receives" };
            return Err(Fault::new(0, format!("device {} {does} twice", twice[0]), "each device once on each side"));
        }
    }
    Ok(pairs)
}

fn number(cursor: &mut Cursor<'_>) -> Result<u64> {
    let start = cursor.at;
    while cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
        cursor.at += 1;
    }
    let text = &cursor.text[start..cursor.at];
    if text.is_empty() {
        return Err(cursor.expected("a whole number"));
    }
    text.parse().map_err(|_| Fault::new(start, format!("`{text}` is too large"), "a number below 2^64"))
}

fn device(cursor: &mut Cursor<'_>) -> Result<u32> {
    let start = cursor.at;
    let id = number(cursor)?;
    if id >= MAX_DEVICES {
        return Err(Fault::new(
            start,
            format!("device {id} is out of reach"),
            format!("at most {MAX_DEVICES} devices"),
        ));
    }
    Ok(id as u32)
}

/// Items between two brackets, separated by commas.
fn items<'a, T>(
    cursor: &mut Cursor<'a>,
    (open, close): (u8, u8),
    mut item: impl FnMut(&mut Cursor<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    cursor.expect(open, &format!("`{}`", open as char))?;
    let mut found = Vec::new();
    loop {
        cursor.skip_blank()?;
        if cursor.take(close) {
            return Ok(found);
        }
        found.push(item(cursor)?);
        cursor.skip_blank()?;
        if !cursor.take(b',') && cursor.peek() != Some(close) {
            return Err(cursor.expected(format!("`,` or `{}`", close as char)));
        }
    }
}

fn listed(cursor: &mut Cursor<'_>) -> Result<Lists> {
    let one = |cursor: &mut Cursor<'_>| {
        let start = cursor.at;
        let ids = items(cursor, (b'{', b'}'), device)?;
        if ids.is_empty() {
            return Err(Fault::new(start, "the group is empty", "at least one device"));
        }
        Ok(ids)
    };
    items(cursor, (b'{', b'}'), one)
}

/// `[2,4]`: sizes that are not zero, with a product of at most [`MAX_DEVICES`].
fn sizes(cursor: &mut Cursor<'_>) -> Result<(Sizes, u64)> {
    let start = cursor.at;
    let sizes = items(cursor, (b'[', b']'), number)?;
    let product = product(start, &sizes)?;
    Ok((sizes.into(), product))
}

fn product(at: usize, sizes: &[u64]) -> Result<u64> {
    let product = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    match product {
        Some(0) => Err(Fault::new(at, "a size is zero", "sizes of at least 1")),
        Some(product) if product <= MAX_DEVICES && !sizes.is_empty() => Ok(product),
        _ if sizes.is_empty() => Err(Fault::new(at, "there are no sizes", "at least one size")),
        _ => Err(Fault::new(
            at,
            "the sizes multiply to more devices than there may be",
            format!("at most {MAX_DEVICES}"),
        )),
    }
}

/// `T(1,0)`: an order of `count` dimensions.
fn order(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<usize>> {
    let start = cursor.at;
    cursor.at += 1;
    let order = items(cursor, (b'(', b')'), number)?;
    let mut seen = vec![false; count];
    let fits = order.len() == count
        && order.iter().all(|&dim| {
            let place = usize::try_from(dim).ok().and_then(|dim| seen.get_mut(dim));
            place.is_some_and(|seen| !std::mem::replace(seen, true))
        });
    if !fits {
        return Err(Fault::new(
            start,
            format!("this is no order of {count} dimensions"),
            format!("each of 0 to {} once", count - 1),
        ));
    }
    Ok(order.into_iter().map(|dim| dim as usize).collect())
}

/// `[groups,size]<=[sizes]`, perhaps with `T(order)`.
fn iota(cursor: &mut Cursor<'_>) -> Result<Lists> {
    let start = cursor.at;
    let (shape, count) = sizes(cursor)?;
    let &[groups, size] = &shape[..] else {
        return Err(Fault::new(
            start,
            format!("{} sizes stand before `<=`", shape.len()),
            "two: how many groups, and how large",
        ));
    };
    if !cursor.rest().starts_with(b"<=") {
        return Err(cursor.expected("`<=` and the sizes of all devices, such as `[8]`"));
    }
    cursor.at += 2;
    let from = cursor.at;
    let (dims, devices) = sizes(cursor)?;
    if devices != count {
        let problem = format!("{groups} groups of {size} are {count} devices, but these sizes multiply to {devices}");
        return Err(Fault::new(from, problem, format!("sizes that multiply to {count}")));
    }
    let ids = if cursor.peek() == Some(b'T') {
        let order = order(cursor, dims.len())?;
        transposed(&dims, &order)
    } else {
        (0..count as u32).collect()
    };
    Ok(ids.chunks(size as usize).map(<[u32]>::to_vec).collect())
}

/// The numbers from 0 of a table of these sizes, with its dimensions in another order.
fn transposed(sizes: &[u64], order: &[usize]) -> Vec<u32> {
    let strides = strides(sizes);
    let loops: Vec<(u64, u64)> = order.iter().map(|&dim| (sizes[dim], strides[dim])).collect();
    enumerate(&loops)
}

fn strides(sizes: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; sizes.len()];
    for at in (1..sizes.len()).rev() {
        strides[at - 1] = strides[at] * sizes[at];
    }
    strides
}

/// All sums of nested loops of (count, stride), the last one fastest.
fn enumerate(loops: &[(u64, u64)]) -> Vec<u32> {
    let mut ids = vec![0u32];
    for &(count, stride) in loops {
        ids = ids.iter().flat_map(|&id| (0..count).map(move |nth| id + (nth * stride) as u32)).collect();
    }
    ids
}

/// A part of an axis: which axis, and the sizes of what lies before it, of itself and of what lies behind.
struct Part {
    at: usize,
    axis: usize,
    before: u64,
    size: u64,
}

/// `['x'=2,'y'=4] {'y'}`.
fn mesh(cursor: &mut Cursor<'_>) -> Result<Lists> {
    let start = cursor.at;
    let axes = items(cursor, (b'[', b']'), |cursor| {
        let name = quoted(cursor)?;
        cursor.expect(b'=', "`=` and the axis' size")?;
        Ok((name, number(cursor)?))
    })?;
    let axis_sizes: Vec<u64> = axes.iter().map(|&(_, size)| size).collect();
    let devices = product(start, &axis_sizes)?;
    cursor.skip_blank()?;
    let placed = device_order(cursor, devices)?;
    cursor.skip_blank()?;
    let first = cursor.at;
    let mut parts = items(cursor, (b'{', b'}'), |cursor| part(cursor, &axes))?;
    let axis_strides = strides(&axis_sizes);
    let step = |part: &Part| (part.size, axis_strides[part.axis] * (axis_sizes[part.axis] / (part.before * part.size)));
    let inner: Vec<(u64, u64)> = parts.iter().map(step).collect();
    parts.sort_by_key(|part| (part.axis, part.before));
    let mut outer = Vec::new();
    let mut rest = parts.iter().peekable();
    for (axis, &size) in axis_sizes.iter().enumerate() {
        // How much of the axis is dealt with, as a product of parts from its slow end on.
        let mut done = 1;
        while let Some(part) = rest.next_if(|part| part.axis == axis) {
            if part.before % done != 0 || part.before < done {
                return Err(Fault::new(part.at, "this part of the axis overlaps another", "parts side by side"));
            }
            outer.push((part.before / done, axis_strides[axis] * (size / part.before)));
            done = part.before * part.size;
        }
        outer.push((size / done, axis_strides[axis]));
    }
    let group: u64 = inner.iter().map(|&(count, _)| count).product();
    if group < 2 && devices > 1 {
        return Err(Fault::new(first, "the axes have a single device", "axes with more than one device a group"));
    }
    outer.extend(inner);
    let ids = enumerate(&outer);
    let ids: Vec<u32> = match placed {
        Some(placed) => ids.into_iter().map(|id| placed[id as usize]).collect(),
        None => ids,
    };
    Ok(ids.chunks(group as usize).map(<[u32]>::to_vec).collect())
}

fn quoted<'a>(cursor: &mut Cursor<'a>) -> Result<&'a str> {
    cursor.expect(b'\'', "an axis' name in quotes, such as `'x'`")?;
    let start = cursor.at;
    let length = memchr::memchr(b'\'', cursor.rest()).ok_or_else(|| cursor.expected("`'` behind the name"))?;
    cursor.at += length + 1;
    Ok(&cursor.text[start..start + length])
}

/// `'y'` or `'y':(2)4`.
fn part(cursor: &mut Cursor<'_>, axes: &[(&str, u64)]) -> Result<Part> {
    let at = cursor.at;
    let name = quoted(cursor)?;
    let Some(axis) = axes.iter().position(|&(known, _)| known == name) else {
        let known: Vec<String> = axes.iter().take(8).map(|(name, _)| format!("`{name}`")).collect();
        return Err(Fault::new(at, format!("the mesh has no axis `{name}`"), format!("one of {}", known.join(", "))));
    };
    let whole = axes[axis].1;
    let (mut before, mut size) = (1, whole);
    if cursor.take(b':') {
        cursor.expect(b'(', "`(` and the size of what lies before the part")?;
        before = number(cursor)?;
        cursor.expect(b')', "`)`")?;
        size = number(cursor)?;
    }
    let product = before.checked_mul(size).filter(|&product| product > 0 && whole.is_multiple_of(product));
    match product {
        Some(_) => Ok(Part { at, axis, before, size }),
        None => Err(Fault::new(
            at,
            format!("axis `{name}` of size {whole} has no part of {size} behind {before}"),
            "sizes that divide the axis",
        )),
    }
}

/// `, device_ids=([4,2]T(1,0))` or `, device_ids=(3,2,1,0)`, if it stands here: the device at each place of the mesh.
fn device_order(cursor: &mut Cursor<'_>, devices: u64) -> Result<Option<Vec<u32>>> {
    if !cursor.take(b',') {
        return Ok(None);
    }
    cursor.skip_blank()?;
    if !cursor.take_word("device_ids") {
        return Err(cursor.expected("`device_ids=`"));
    }
    cursor.expect(b'=', "`=`")?;
    let start = cursor.at;
    let ids = if cursor.rest().starts_with(b"([") {
        cursor.at += 1;
        let (dims, _) = sizes(cursor)?;
        if cursor.peek() != Some(b'T') {
            return Err(cursor.expected("`T(` and the order of the dimensions"));
        }
        let order = order(cursor, dims.len())?;
        cursor.expect(b')', "`)`")?;
        transposed(&dims, &order)
    } else {
        items(cursor, (b'(', b')'), device)?
    };
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..devices as u32) {
        return Err(Fault::new(
            start,
            "this is no order of the mesh's devices",
            format!("each of 0 to {} once", devices - 1),
        ));
    }
    Ok(Some(ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_expand_as_xla_executes_them() {
        for (text, expected) in [
            ("{}", ""),
            ("{{0,1},{2,3}}", "0,1 2,3"),
            ("[2,4]<=[8]", "0,1,2,3 4,5,6,7"),
            ("[4,2]<=[2,4]T(1,0)", "0,4 1,5 2,6 3,7"),
            ("mesh['x'=2,'y'=4] {'y'}", "0,1,2,3 4,5,6,7"),
            ("mesh['x'=2,'y'=4] {'x'}", "0,4 1,5 2,6 3,7"),
            ("mesh['x'=2,'y'=4] {'y','x'}", "0,4,1,5,2,6,3,7"),
            ("mesh['x'=2,'y'=4] {'y':(2)2}", "0,1 2,3 4,5 6,7"),
            ("mesh['x'=2,'y'=4] {'y':(1)2}", "0,2 1,3 4,6 5,7"),
            ("mesh['x'=2,'y'=4] {'y':(1)2,'x'}", "0,4,2,6 1,5,3,7"),
            ("mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'y'}", "0,2 1,3"),
            ("mesh['x'=2,'y'=2], device_ids=(3,2,1,0) {'y'}", "3,2 1,0"),
        ] {
            let lists = replica_groups(text).unwrap();
            let list = |ids: &Vec<u32>| ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            assert_eq!(lists.iter().map(list).collect::<Vec<_>>().join(" "), expected, "{text}");
        }
    }

    #[test]
    fn groups_that_cannot_be_are_faults_before_anything_is_made() {
        for (text, at) in [
            ("[2,2]<=[16]", 7),
            ("[1000000,1000000]<=[1000000000000]", 0),
            ("[4294967296,4294967296]<=[1]", 0),
            ("[0,2]<=[0]", 0),
            ("[2,2,2]<=[8]", 0),
            ("[2,2]<=[2,2]T(0,0)", 12),
            ("[2,2]<=[2,2]T(0)", 12),
            ("mesh['a'=2,'b'=2] {'zz'}", 19),
            ("mesh['a'=2,'b'=4] {'b':(3)2}", 19),
            ("mesh['a'=2,'b'=4] {'b':(1)2,'b'}", 28),
            ("mesh['a'=99999999,'b'=99999999] {'b'}", 4),
            ("mesh['a'=2,'b'=2] {}", 18),
            ("mesh['a'=2], device_ids=(0,0) {'a'}", 24),
            ("{{0,1},{1,2}}", 0),
            ("{{0,1},{}}", 7),
            ("{{0,4294967295}}", 4),
            ("{{0,1},{2,3}", 12),
            ("all", 0),
            ("{{0,1}} x", 8),
        ] {
            let fault = replica_groups(text).unwrap_err();
            assert_eq!(fault.at, at, "{text}: {} ({})", fault.problem, fault.expected);
        }
    }

    #[test]
    fn pairs_have_two_devices_each_and_name_each_once_on_a_side() {
        assert_eq!(pairs("{{0,1},{1,0}}").unwrap(), [(0, 1), (1, 0)]);
        assert_eq!(pairs("{}").unwrap(), []);
        for text in ["{{0,1,2}}", "{{0}}", "{{0,1},{0,2}}", "{{0,1},{2,1}}", "{0,1}"] {
            assert!(pairs(text).is_err(), "{text}");
        }
    }
}
