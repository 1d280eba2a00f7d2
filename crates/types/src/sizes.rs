//! Sizes in bytes as text.

/// Why a text is not a size in bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size: {expected}")]
pub struct SizeError {
    /// The text.
    pub text: String,
    /// What was expected.
    pub expected: &'static str,
}

/// Units of sizes: PyTorch and XLA call 2^20 bytes MB; here `MB` is 10^6 and `MiB` is 2^20.
const UNITS: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1000),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// Reads a size: `25MiB`, `25MB`, `1.5GB`, or a plain number of bytes.
///
/// # Errors
/// [`SizeError`] for anything else, for sizes above 2^63 bytes and for fractions of a byte.
pub fn parse_bytes(text: &str) -> Result<u64, SizeError> {
    let error = |expected| SizeError { text: text.to_owned(), expected };
    let trimmed = text.trim();
    let unit = UNITS.iter().find(|(unit, _)| trimmed.ends_with(unit));
    let (number, factor) = match unit {
        Some((unit, factor)) => (trimmed[..trimmed.len() - unit.len()].trim_end(), *factor),
        None => (trimmed, 1),
    };
    if number.starts_with('-') {
        return Err(error("sizes are not negative"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || (number.contains('.') && fraction.is_empty()) {
        return Err(error("expected a number with a unit, such as 25MB (10^6 bytes), 25MiB (2^20 bytes) or 26214400"));
    }
    let too_large = || error("it is above 2^63 bytes");
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut bytes = whole.checked_mul(factor).ok_or_else(too_large)?;
    if !fraction.is_empty() {
        let numerator: u64 = fraction.get(..15).unwrap_or(fraction).parse().map_err(|_| too_large())?;
        let scaled = u128::from(numerator) * u128::from(factor);
        let denominator = 10u128.pow(fraction.len().min(15) as u32);
        if scaled % denominator != 0 {
            return Err(error("it is not a whole number of bytes"));
        }
        bytes = u64::try_from(scaled / denominator).ok().and_then(|f| bytes.checked_add(f)).ok_or_else(too_large)?;
    }
    if i64::try_from(bytes).is_err() {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Writes a size so that [`parse_bytes`] reads it back: in the largest unit that divides it.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    let fits =
        |&&(unit, factor): &&(&str, u64)| unit != "kB" && factor > 1 && bytes >= factor && bytes.is_multiple_of(factor);
    match UNITS.iter().filter(fits).max_by_key(|(_, factor)| *factor) {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => bytes.to_string(),
    }
}

/// A size in the largest binary unit that keeps it at one or more: `24.0 MiB`.
#[must_use]
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would print as 1024.0 is one of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_ten_and_of_two() {
        for (text, bytes) in [
            ("25MB", 25_000_000),
            ("25MiB", 26_214_400),
            ("26214400", 26_214_400),
            ("1.5KB", 1500),
            ("0", 0),
            ("1 GiB", 1 << 30),
            ("7B", 7),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
            assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes), "{text}");
        }
        for text in ["", "-1", "true", "MB", "1.5", "1.", "99999999TiB", "9223372036854775808", "25 M", "nan", "inf"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_one_decimal_and_a_binary_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (26_214_400, "25.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
