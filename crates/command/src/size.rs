//! Sizes on the command line: `64M`, `1G`, `4096`.

/// Parses a size in bytes with an optional binary suffix K, M, G or T (`KiB` and `kB` forms are not taken).
///
/// Errors: a text for the user, when it is no number, has an unknown suffix, or exceeds 63 bits.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || {
        format!(
            "\"{text}\" is no size; write bytes, or a number with K, M, G or T (powers of 1024), like 64M"
        )
    };
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let shift = match suffix {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number
        .checked_mul(1 << shift)
        // No file and no device is larger.
        .filter(|bytes| *bytes <= i64::MAX as u64)
        .ok_or_else(|| format!("\"{text}\" is too large"))
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
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64M"), Ok(64 << 20));
        assert_eq!(parse("2g"), Ok(2 << 30));
        for bad in [
            "",
            "M",
            "1.5G",
            "-1",
            "1X",
            "1GB",
            "99999999999T",
            "18446744073709551616",
            "18446744073709551615",
            "8388608T",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show(0), "0 bytes");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(1536), "1.5 KiB");
    }
}
