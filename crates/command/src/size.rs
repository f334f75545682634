//! Sizes on the command line and in mount options: `64M`, `1.5G`, `100MB`, `4096`.

/// Units: how they begin, and which power of 1024 or of 1000 they are.
const UNITS: [(char, u32); 5] = [('k', 1), ('m', 2), ('g', 3), ('t', 4), ('p', 5)];
/// No file and no device is larger, bytes.
const BYTES_MAX: u128 = i64::MAX as u128;

/// Parses a size in bytes: a number, whole or with a fraction, and a unit. `K`, `M`, `G`, `T`, `P` and `KiB`, `MiB`, ... are powers of 1024,
/// as for mke2fs(8); `KB`, `MB`, ... are powers of 1000. Capitals or not. What a fraction leaves of a byte goes.
///
/// Errors: a text for the user, when it is no number, has an unknown unit, or exceeds 63 bits.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || {
        format!(
            "\"{text}\" is no size; write bytes, or a number with a unit, like 64M, 1.5G (powers of 1024) or 100MB (powers of 1000)"
        )
    };
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let split = text.find(|c| !is_number(c)).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // As many digits as 63 bits can have; more of a fraction are less than a byte.
    let is_digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    let has_point = number.len() > whole.len();
    if whole.is_empty() || !is_digits(fraction) || (has_point && fraction.is_empty()) {
        return Err(bad());
    }
    let unit = unit_bytes(unit).ok_or_else(bad)?;
    if has_point && unit == 1 {
        return Err(bad());
    }
    let too_large = || format!("\"{text}\" is too large");
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let fraction = &fraction[..fraction.len().min(18)];
    let parts: u128 = format!("0{fraction}").parse().map_err(|_| bad())?;
    let part_bytes = parts * unit / 10u128.pow(fraction.len() as u32);
    whole
        .checked_mul(unit)
        .and_then(|bytes| bytes.checked_add(part_bytes))
        .filter(|bytes| *bytes <= BYTES_MAX)
        .map(|bytes| bytes as u64)
        .ok_or_else(too_large)
}

/// Bytes of a unit; none is a byte.
fn unit_bytes(unit: &str) -> Option<u128> {
    let lower = unit.to_ascii_lowercase();
    if lower.is_empty() || lower == "b" {
        return Some(1);
    }
    let mut chars = lower.chars();
    let first = chars.next()?;
    let (_, power) = UNITS.iter().find(|(begins, _)| *begins == first)?;
    match chars.as_str() {
        "" | "ib" => Some(1024u128.pow(*power)),
        "b" => Some(1000u128.pow(*power)),
        _ => None,
    }
}

/// Shows a size for people: the largest unit that leaves at least one, with one decimal where it is not whole.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let one = 1u64 << (10 * unit);
    if bytes.is_multiple_of(one) {
        format!("{} {}", bytes / one, UNITS[unit])
    } else {
        format!("{:.1} {}", bytes as f64 / one as f64, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, show};

    #[test]
    fn sizes_are_parsed_or_refused() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("0", 0),
            ("64M", 64 << 20),
            ("64MiB", 64 << 20),
            ("64mib", 64 << 20),
            ("2g", 2 << 30),
            ("100MB", 100_000_000),
            ("100kB", 100_000),
            ("1.5G", 3 << 29),
            ("1.5GB", 1_500_000_000),
            ("0.1K", 102),
            ("1.0000000000000000000000001T", 1 << 40),
            ("7P", 7 << 50),
            ("9223372036854775807", i64::MAX as u64),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in [
            "", "M", ".5G", "1.", "1.G", "1.5", "1..5G", "1.5.1G", "-1", "+1", "1X", "1 G",
            "1GiBs", "1bb", "1iB", "0x10", "1e9", "1,5G", "\u{664}M",
        ] {
            let told = parse(bad).unwrap_err();
            assert!(told.contains("is no size"), "{bad}: {told}");
        }
        for large in [
            "99999999999T",
            "18446744073709551616",
            "9223372036854775808",
            "8388608T",
            "8192.0P",
            "340282366920938463463374607431768211456",
            "340282366920938463463374607431768211455P",
        ] {
            let told = parse(large).unwrap_err();
            assert!(told.contains("is too large"), "{large}: {told}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show(0), "0 bytes");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(1536), "1.5 KiB");
    }
}
